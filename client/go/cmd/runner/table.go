package main

import (
	"fmt"
	"os"

	"gopkg.in/yaml.v3"
)

// scenario is one entry of a table, as tests/scenarios/README.md describes it.
type scenario struct {
	Name    string
	Job     fields
	Walk    []walked
	Steps   []fields
	JobThen fields `yaml:"job_then"`
	// What this runner does not know it must not pass over in silence.
	Others fields `yaml:",inline"`
}

// walked is a line of a walk: what the next trial must be, and how it goes.
type walked struct {
	batchSize int
	cost      float64
	converged bool
}

// UnmarshalYAML reads [batch size, cost, converged].
func (w *walked) UnmarshalYAML(node *yaml.Node) error {
	if len(node.Content) != 3 {
		return fmt.Errorf("line %d: a walk has lines of [batch size, cost, converged]", node.Line)
	}
	for i, into := range []any{&w.batchSize, &w.cost, &w.converged} {
		if err := node.Content[i].Decode(into); err != nil {
			return err
		}
	}
	return nil
}

func readTable(path string) (table []scenario, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &table); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return table, nil
}
