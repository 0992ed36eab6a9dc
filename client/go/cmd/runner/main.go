// Command runner replays behaviour tables against a server: runner --server HOST:PORT FILE...
//
// It prints one line of JSON per scenario, and exits with 1 if one failed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"wattwise"
)

// leftOut has the scenarios that this client cannot replay, with the reason, by name.
var leftOut = map[string]string{}

const scenarioTimeout = time.Minute

// outcome is the line that the runner prints for a scenario.
type outcome struct {
	File     string `json:"file"`
	Scenario string `json:"scenario"`
	Outcome  string `json:"outcome"`
	Why      string `json:"why"`
}

func main() {
	server := flag.String("server", "localhost:50051", "address of the server")
	flag.Parse()
	credentials, err := wattwise.CredentialsFromEnv()
	if err != nil {
		log.Fatal(err)
	}
	client, err := wattwise.NewClient(*server, credentials)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	failed, lines := false, json.NewEncoder(os.Stdout)
	lines.SetEscapeHTML(false)
	runID := wattwise.NewID()[:8]
	for _, path := range flag.Args() {
		table, err := readTable(path)
		if err != nil {
			log.Fatal(err)
		}
		for i, scenario := range table {
			suffix := fmt.Sprintf("go-%s-%s-%d", runID, filepath.Base(path), i)
			line := outcomeOf(client, scenario, suffix)
			line.File = filepath.Base(path)
			failed = failed || line.Outcome == "failed"
			if err := lines.Encode(line); err != nil {
				log.Fatal(err)
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}

func outcomeOf(client *wattwise.Client, scenario scenario, suffix string) outcome {
	name := scenario.Name
	if why, ok := leftOut[name]; ok {
		return outcome{Scenario: name, Outcome: "left out", Why: why}
	}
	ctx, cancel := context.WithTimeout(context.Background(), scenarioTimeout)
	defer cancel()
	if err := replay(ctx, client, scenario, suffix); err != nil {
		return outcome{Scenario: name, Outcome: "failed", Why: err.Error()}
	}
	return outcome{Scenario: name, Outcome: "passed"}
}
