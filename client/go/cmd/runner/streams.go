package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"wattwise"
	v1 "wattwise/v1"
)

// stream is an open StreamResults, with what came on it.
type stream struct {
	call     v1.BatchSizeOptimizer_StreamResultsClient
	messages chan message
}

// message is a decision, or what ended the stream.
type message struct {
	decision *v1.Decision
	err      error
}

func (r *replay) open(ctx context.Context, given fields) (proto.Message, error) {
	trial, err := r.trial(given, "trial")
	if err != nil {
		return nil, err
	}
	call, err := r.client.Trainer.StreamResults(r.client.Outgoing(ctx))
	if err != nil {
		return nil, wattwise.FromStatus(err)
	}
	opened := &stream{call: call, messages: make(chan message, 100)}
	r.streams[text(given, "trial", "")] = opened
	go opened.receive()
	return nil, opened.put(heartbeatOf(trial))
}

func (r *replay) send(_ context.Context, given fields) (proto.Message, error) {
	to, err := r.stream(given)
	if err != nil {
		return nil, err
	}
	if given["epoch"] == nil {
		trial, err := r.trial(given, "trial")
		if err != nil {
			return nil, err
		}
		return nil, to.put(heartbeatOf(trial))
	}
	result, err := r.result(given)
	if err != nil {
		return nil, err
	}
	return nil, to.put(&v1.StreamResultsRequest{Event: &v1.StreamResultsRequest_Result{Result: result}})
}

func (r *replay) expect(_ context.Context, given fields) (proto.Message, error) {
	if err := only(given, "trial"); err != nil {
		return nil, err
	}
	from, err := r.stream(given)
	if err != nil {
		return nil, err
	}
	next, err := from.next()
	if err != nil {
		return nil, err
	}
	if next.err != nil {
		return nil, next.err
	}
	return next.decision, nil
}

func (r *replay) close(_ context.Context, given fields) (proto.Message, error) {
	if err := only(given, "trial"); err != nil {
		return nil, err
	}
	ended, err := r.stream(given)
	if err != nil {
		return nil, err
	}
	if err := ended.call.CloseSend(); err != nil {
		return nil, err
	}
	last, err := ended.next()
	switch {
	case err != nil:
		return nil, err
	case last.decision != nil:
		return nil, fmt.Errorf("another message came: %v", last.decision)
	case last.err != io.EOF:
		return nil, last.err
	}
	return nil, nil
}

func (r *replay) stream(given fields) (*stream, error) {
	if found := r.streams[text(given, "trial", "")]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("no stream is open for %v", given["trial"])
}

func (s *stream) receive() {
	for {
		answer, err := s.call.Recv()
		s.messages <- message{answer.GetDecision(), wattwise.FromStatus(err)}
		if err != nil {
			return
		}
	}
}

// put sends; that the other side has ended the stream is told by its messages.
func (s *stream) put(request *v1.StreamResultsRequest) error {
	if err := s.call.Send(request); err != io.EOF {
		return err
	}
	return nil
}

func (s *stream) next() (message, error) {
	select {
	case found := <-s.messages:
		return found, nil
	case <-time.After(longestWait):
		return message{}, errors.New("nothing came")
	}
}

func heartbeatOf(trial *v1.TrialId) *v1.StreamResultsRequest {
	return &v1.StreamResultsRequest{Event: &v1.StreamResultsRequest_Heartbeat{Heartbeat: &v1.HeartbeatRequest{Trial: trial}}}
}
