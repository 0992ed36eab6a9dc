package main

import (
	"fmt"
	"os"

	"gopkg.in/yaml.v3"
)

// scenario is an entry of a behaviour table, as tests/scenarios/README.md describes it.
type scenario struct {
	Name    string
	Job     fields
	Walk    []walkLine
	Steps   []fields
	JobThen fields `yaml:"job_then"`
	// Unknown keys, which must not be ignored.
	Unknown fields `yaml:",inline"`
}

// walkLine is a line of a walk: the batch size of the next trial, its cost, and whether it converges.
type walkLine struct {
	batchSize int
	cost      float64
	converged bool
}

// UnmarshalYAML reads [batch size, cost, converged].
func (w *walkLine) UnmarshalYAML(node *yaml.Node) error {
	if len(node.Content) != 3 {
		return fmt.Errorf("line %d: not [batch size, cost, converged]", node.Line)
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
