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

// stream is an open StreamResults with the messages received on it.
type stream struct {
	call     v1.BatchSizeOptimizer_StreamResultsClient
	messages chan message
}

// message is a decision, or the error that ended the stream.
type message struct {
	decision *v1.Decision
	err      error
}

func (s *steps) open(ctx context.Context, args fields) (proto.Message, error) {
	trial, err := s.trial(args, "trial")
	if err != nil {
		return nil, err
	}
	call, err := s.client.Trainer.StreamResults(s.client.Outgoing(ctx))
	if err != nil {
		return nil, wattwise.FromStatus(err)
	}
	opened := &stream{call: call, messages: make(chan message, 100)}
	s.streams[text(args, "trial", "")] = opened
	go opened.receive()
	return nil, opened.put(heartbeatRequest(trial))
}

func (s *steps) send(_ context.Context, args fields) (proto.Message, error) {
	to, err := s.stream(args)
	if err != nil {
		return nil, err
	}
	if args["epoch"] == nil {
		trial, err := s.trial(args, "trial")
		if err != nil {
			return nil, err
		}
		return nil, to.put(heartbeatRequest(trial))
	}
	result, err := s.result(args)
	if err != nil {
		return nil, err
	}
	return nil, to.put(&v1.StreamResultsRequest{Event: &v1.StreamResultsRequest_Result{Result: result}})
}

func (s *steps) expect(_ context.Context, args fields) (proto.Message, error) {
	if err := checkKeys(args, "trial"); err != nil {
		return nil, err
	}
	from, err := s.stream(args)
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

func (s *steps) close(_ context.Context, args fields) (proto.Message, error) {
	if err := checkKeys(args, "trial"); err != nil {
		return nil, err
	}
	ended, err := s.stream(args)
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
		return nil, fmt.Errorf("an unexpected decision arrived: %v", last.decision)
	case last.err != io.EOF:
		return nil, last.err
	}
	return nil, nil
}

func (s *steps) stream(args fields) (*stream, error) {
	if found := s.streams[text(args, "trial", "")]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("no open stream for trial %v", args["trial"])
}

func (s *stream) receive() {
	for {
		response, err := s.call.Recv()
		s.messages <- message{response.GetDecision(), wattwise.FromStatus(err)}
		if err != nil {
			return
		}
	}
}

// put sends a request. If the server has ended the stream, next returns the reason.
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
	case <-time.After(stepTimeout):
		return message{}, errors.New("no message")
	}
}

func heartbeatRequest(trial *v1.TrialId) *v1.StreamResultsRequest {
	return &v1.StreamResultsRequest{Event: &v1.StreamResultsRequest_Heartbeat{Heartbeat: &v1.HeartbeatRequest{Trial: trial}}}
}
