// Command runner makes the calls that it reads from stdin, a line of JSON each, and prints what it observed of each one:
// runner --server HOST:PORT. tests/scenarios/README.md describes the lines.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"wattwise"
)

const callTimeout = time.Minute

// call is a line of stdin.
type call struct {
	ID      int             `json:"id"`
	Call    string          `json:"call"`
	Stream  int             `json:"stream"`
	Request json.RawMessage `json:"request"`
}

// observation is a line of stdout. It has either an answer or an error.
type observation struct {
	ID     int              `json:"id"`
	Answer *json.RawMessage `json:"answer,omitempty"`
	Error  *refusal         `json:"error,omitempty"`
}

// refusal is an error of the client.
type refusal struct {
	Reason   string            `json:"reason"`
	Status   string            `json:"status"`
	Fields   []string          `json:"fields"`
	Metadata map[string]string `json:"metadata"`
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
	runner := &runner{client: client, streams: map[int]*stream{}}
	lines, observations := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		var read call
		if err := json.Unmarshal(line, &read); err != nil {
			log.Fatal(err)
		}
		if err := observations.Encode(runner.observe(read)); err != nil {
			log.Fatal(err)
		}
	}
}

// runner makes calls through a client.
type runner struct {
	client  *wattwise.Client
	streams map[int]*stream
}

// observe makes a call. An error that is not one of the client ends the program.
func (r *runner) observe(read call) observation {
	observed := observation{ID: read.ID}
	answer, err := r.make(read)
	var refused *wattwise.Error
	switch {
	case errors.As(err, &refused):
		observed.Error = &refusal{
			Reason: refused.Reason, Status: code.Code(refused.Code).String(), Fields: []string{}, Metadata: map[string]string{},
		}
		for _, violation := range refused.Violations {
			observed.Error.Fields = append(observed.Error.Fields, violation.Field)
		}
		for key, value := range refused.Metadata {
			observed.Error.Metadata[key] = value
		}
	case err != nil:
		log.Fatalf("%s: %v", read.Call, err)
	default:
		observed.Answer = &answer
	}
	return observed
}

func (r *runner) make(read call) (json.RawMessage, error) {
	if onStream, ok := streamCalls[read.Call]; ok {
		return onStream(r, read)
	}
	if read.Call == "state.after" {
		return stateAfter(read.Request)
	}
	unary, ok := unaryCalls[read.Call]
	if !ok {
		log.Fatalf("%s is unknown to this runner", read.Call)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return encoded(unary(ctx, r.client, read.Request))
}

func encoded(message proto.Message, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(message)
}

// stateAfter returns the state of a trial after an event.
func stateAfter(request []byte) (json.RawMessage, error) {
	var read struct{ State, Event string }
	var state wattwise.TrialState
	if err := json.Unmarshal(request, &read); err != nil {
		return nil, err
	}
	if _, err := fmt.Sscan(read.State, &state.Link, &state.Progress); err != nil {
		return nil, err
	}
	state = state.After(wattwise.TrialEvent(read.Event))
	return json.Marshal(fmt.Sprintf("%s %s", state.Link, state.Progress))
}
