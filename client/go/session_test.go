package wattwise

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "wattwise/v1"
)

// failingOnce is a server whose first EndTrial fails.
type failingOnce struct {
	v1.UnimplementedBatchSizeOptimizerServer
	reasons []v1.EndReason
}

func (s *failingOnce) RegisterJob(_ context.Context, request *v1.RegisterJobRequest) (*v1.RegisterJobResponse, error) {
	return &v1.RegisterJobResponse{Job: &v1.Job{Spec: request.Job}}, nil
}

func (s *failingOnce) GetNextBatchSize(_ context.Context, request *v1.GetNextBatchSizeRequest) (
	*v1.GetNextBatchSizeResponse, error) {
	id := &v1.TrialId{JobId: request.JobId, LaunchId: request.LaunchId, TrialNumber: 1}
	return &v1.GetNextBatchSizeResponse{Trial: &v1.Trial{Id: id, BatchSize: 16}}, nil
}

func (s *failingOnce) EndTrial(_ context.Context, request *v1.EndTrialRequest) (*v1.EndTrialResponse, error) {
	s.reasons = append(s.reasons, request.EndReason)
	if len(s.reasons) == 1 {
		return nil, status.Error(codes.Internal, "out of order")
	}
	return &v1.EndTrialResponse{Trial: &v1.Trial{Id: request.Trial, BatchSize: 16}}, nil
}

func TestALaterEndDeliversTheFirstReasonOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	trainer, server := &failingOnce{}, grpc.NewServer()
	v1.RegisterBatchSizeOptimizerServer(server, trainer)
	go server.Serve(listener)
	client, err := NewClient(listener.Addr().String(), Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	session, err := client.Launch(context.Background(), &v1.JobSpec{JobId: "job", BatchSizes: []int32{16}})
	if err != nil {
		t.Fatal(err)
	}
	if err := session.End(v1.EndReason_END_REASON_OUT_OF_MEMORY); !ServerAway(err) {
		t.Error(err)
	}
	for again := 0; again < 2; again++ {
		if err := session.End(v1.EndReason_END_REASON_COMPLETED); err != nil {
			t.Error(err)
		}
	}
	// The handlers have ended.
	server.GracefulStop()
	first := v1.EndReason_END_REASON_OUT_OF_MEMORY
	if len(trainer.reasons) != 2 || trainer.reasons[0] != first || trainer.reasons[1] != first {
		t.Errorf("EndTrial was called with %v", trainer.reasons)
	}
}
