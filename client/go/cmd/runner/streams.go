package main

import (
	"context"
	"encoding/json"
	"io"

	"google.golang.org/protobuf/encoding/protojson"

	"wattwise"
	v1 "wattwise/v1"
)

// stream is an open StreamResults.
type stream struct {
	v1.BatchSizeOptimizer_StreamResultsClient
	cancel context.CancelFunc
}

var nothing = json.RawMessage("{}")

var streamCalls = map[string]func(*runner, call) (json.RawMessage, error){
	"stream.open": func(r *runner, read call) (json.RawMessage, error) {
		ctx, cancel := context.WithCancel(r.client.Outgoing(context.Background()))
		opened, err := r.client.Trainer.StreamResults(ctx)
		r.streams[read.Stream] = &stream{opened, cancel}
		return nothing, wattwise.FromStatus(err)
	},
	"stream.send": func(r *runner, read call) (json.RawMessage, error) {
		request := &v1.StreamResultsRequest{}
		if err := protojson.Unmarshal(read.Request, request); err != nil {
			return nil, err
		}
		// If the server has ended the stream, Recv returns the reason.
		if err := r.streams[read.Stream].Send(request); err != nil && err != io.EOF {
			return nil, err
		}
		return nothing, nil
	},
	"stream.receive": func(r *runner, read call) (json.RawMessage, error) {
		response, err := r.streams[read.Stream].Recv()
		if err == io.EOF {
			return json.RawMessage("null"), nil
		}
		return encoded(response, wattwise.FromStatus(err))
	},
	"stream.close": func(r *runner, read call) (json.RawMessage, error) {
		return nothing, r.streams[read.Stream].CloseSend()
	},
	"stream.cancel": func(r *runner, read call) (json.RawMessage, error) {
		r.streams[read.Stream].cancel()
		delete(r.streams, read.Stream)
		return nothing, nil
	},
}
