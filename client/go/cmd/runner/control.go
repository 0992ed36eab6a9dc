package main

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "wattwise/v1"
)

func (s *steps) importTrial(ctx context.Context, args fields) (proto.Message, error) {
	named := fields{}
	for name, value := range args {
		if name != "trial" && name != "measurements" {
			named[name] = value
		}
	}
	request := &v1.ImportTrialRequest{}
	if err := s.fillForJob(request, named); err != nil {
		return nil, err
	}
	lines, _ := args["measurements"].([]any)
	for _, line := range lines {
		values, ok := line.([]any)
		if !ok || len(values) != 3 {
			return nil, fmt.Errorf("%v is not [epoch, cost, metric]", line)
		}
		measurement := &v1.Measurement{TimeSeconds: proto.Float64(1)}
		err := fill(measurement, fields{"epoch": values[0], "energy_joules": values[1], "metric": values[2]})
		if err != nil {
			return nil, err
		}
		request.Measurements = append(request.Measurements, measurement)
	}
	response, err := s.client.ImportTrial(ctx, request)
	if err != nil {
		return nil, err
	}
	s.trials[text(args, "trial", "")] = response.Trial.Id
	return response, nil
}

func (s *steps) reset(ctx context.Context, args fields) (proto.Message, error) {
	request := &v1.ResetJobRequest{}
	if err := s.fillForJob(request, args); err != nil {
		return nil, err
	}
	return s.client.ResetJob(ctx, request.JobId)
}

func (s *steps) exclude(ctx context.Context, args fields) (proto.Message, error) {
	trial, err := s.trial(args, "trial", "excluded")
	if err != nil {
		return nil, err
	}
	return s.client.SetTrialExcluded(ctx, trial, args["excluded"] == true)
}

func (s *steps) ban(ctx context.Context, args fields) (proto.Message, error) {
	request := &v1.SetBatchSizeBannedRequest{}
	if err := s.fillForJob(request, args); err != nil {
		return nil, err
	}
	return s.client.SetBatchSizeBanned(ctx, request.JobId, int(request.BatchSize), request.GetBanned())
}

func (s *steps) pin(ctx context.Context, args fields) (proto.Message, error) {
	request := &v1.SetPinnedBatchSizeRequest{}
	if err := s.fillForJob(request, args); err != nil {
		return nil, err
	}
	return s.client.SetPinnedBatchSize(ctx, request.JobId, request.BatchSize)
}

func (s *steps) readmit(ctx context.Context, args fields) (proto.Message, error) {
	request := &v1.ReadmitBatchSizeRequest{}
	if err := s.fillForJob(request, args); err != nil {
		return nil, err
	}
	return s.client.ReadmitBatchSize(ctx, request.JobId, int(request.BatchSize))
}

func (s *steps) pause(ctx context.Context, args fields) (proto.Message, error) {
	request := &v1.SetJobPausedRequest{}
	if err := s.fillForJob(request, args); err != nil {
		return nil, err
	}
	return s.client.SetJobPaused(ctx, request.JobId, request.GetPaused())
}

func (s *steps) baseline(ctx context.Context, args fields) (proto.Message, error) {
	request := &v1.RequestBaselineRequest{}
	if err := s.fillForJob(request, args); err != nil {
		return nil, err
	}
	return s.client.RequestBaseline(ctx, request.JobId)
}

func (s *steps) baselineEvery(ctx context.Context, args fields) (proto.Message, error) {
	request := &v1.SetBaselineEveryRequest{}
	if err := s.fillForJob(request, args); err != nil {
		return nil, err
	}
	return s.client.SetBaselineEvery(ctx, request.JobId, int(request.GetEvery()))
}

func (s *steps) setPolicy(ctx context.Context, args fields) (proto.Message, error) {
	request := &v1.SetJobPolicyRequest{}
	if err := s.fillForJob(request, args); err != nil {
		return nil, err
	}
	return s.client.SetJobPolicy(ctx, request.JobId, request.Policy)
}

// fillForJob sets the fields that a table names in a request about a job, by default the scenario's.
func (s *steps) fillForJob(request proto.Message, args fields) error {
	named := fields{"job_id": s.spec.GetJobId()}
	for name, value := range args {
		named[name] = value
	}
	return fill(request, named)
}
