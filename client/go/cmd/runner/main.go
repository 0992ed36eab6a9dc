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

// leftOut says why this client leaves a scenario out, by its name.
var leftOut = map[string]string{}

const patience = time.Minute

// outcome is what became of a scenario.
type outcome struct {
	File     string `json:"file"`
	Scenario string `json:"scenario"`
	Outcome  string `json:"outcome"`
	Why      string `json:"why"`
}

func main() {
	server := flag.String("server", "localhost:50051", "where the server listens")
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
	run := wattwise.NewRequestID()[:8]
	for _, path := range flag.Args() {
		table, err := readTable(path)
		if err != nil {
			log.Fatal(err)
		}
		for i, scenario := range table {
			suffix := fmt.Sprintf("go-%s-%s-%d", run, filepath.Base(path), i)
			found := judge(&replay{client: client, table: scenario, suffix: suffix})
			found.File = filepath.Base(path)
			failed = failed || found.Outcome == "failed"
			if err := lines.Encode(found); err != nil {
				log.Fatal(err)
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}

func judge(scenario *replay) outcome {
	name := scenario.table.Name
	if why, ok := leftOut[name]; ok {
		return outcome{Scenario: name, Outcome: "left out", Why: why}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := scenario.run(ctx); err != nil {
		return outcome{Scenario: name, Outcome: "failed", Why: err.Error()}
	}
	return outcome{Scenario: name, Outcome: "passed"}
}
