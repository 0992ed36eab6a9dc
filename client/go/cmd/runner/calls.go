package main

import (
	"context"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"wattwise"
	v1 "wattwise/v1"
)

// unaryCall makes the call whose request is proto3 JSON.
type unaryCall func(context.Context, *wattwise.Client, []byte) (proto.Message, error)

// unaryCalls has the calls by name. Where the client returns a part of the response, it is put into a response again.
var unaryCalls = map[string]unaryCall{
	"RegisterJob": on(func(ctx context.Context, c *wattwise.Client, r *v1.RegisterJobRequest) (proto.Message, error) {
		return c.RegisterJob(ctx, r.Job)
	}),
	"GetNextBatchSize": on(func(ctx context.Context, c *wattwise.Client, r *v1.GetNextBatchSizeRequest) (proto.Message, error) {
		if r.Resume {
			return c.ResumeTrial(ctx, r.JobId, r.LaunchId)
		}
		return c.GetNextBatchSize(ctx, r.JobId, r.LaunchId)
	}),
	"ReportResult": on(func(ctx context.Context, c *wattwise.Client, r *v1.ReportResultRequest) (proto.Message, error) {
		decision, err := c.ReportResult(ctx, r.Result)
		return &v1.ReportResultResponse{Decision: decision}, err
	}),
	"Heartbeat": on(func(ctx context.Context, c *wattwise.Client, r *v1.HeartbeatRequest) (proto.Message, error) {
		decision, err := c.Heartbeat(ctx, r.Trial)
		return &v1.HeartbeatResponse{Decision: decision}, err
	}),
	"EndTrial": on(func(ctx context.Context, c *wattwise.Client, r *v1.EndTrialRequest) (proto.Message, error) {
		trial, err := c.EndTrial(ctx, r.Trial, r.EndReason)
		return &v1.EndTrialResponse{Trial: trial}, err
	}),
	"LookupTrial": on(func(ctx context.Context, c *wattwise.Client, r *v1.LookupTrialRequest) (proto.Message, error) {
		trial, err := c.LookupTrial(ctx, r.JobId, r.LaunchId)
		return &v1.LookupTrialResponse{Trial: trial}, err
	}),
	"ImportTrial": on(func(ctx context.Context, c *wattwise.Client, r *v1.ImportTrialRequest) (proto.Message, error) {
		return c.ImportTrial(ctx, r)
	}),
	"GetJob": on(func(ctx context.Context, c *wattwise.Client, r *v1.GetJobRequest) (proto.Message, error) {
		return c.GetJob(ctx, r.JobId)
	}),
	"GetTrial": on(func(ctx context.Context, c *wattwise.Client, r *v1.GetTrialRequest) (response proto.Message, err error) {
		err = c.Retrying(ctx, func(ctx context.Context) (err error) {
			response, err = c.Reader.GetTrial(ctx, r)
			return err
		})
		return response, err
	}),
	"DeleteJob": on(func(ctx context.Context, c *wattwise.Client, r *v1.DeleteJobRequest) (response proto.Message, err error) {
		err = c.Retrying(ctx, func(ctx context.Context) (err error) {
			response, err = c.Control.DeleteJob(ctx, r)
			return err
		})
		return response, err
	}),
	"ResetJob": on(func(ctx context.Context, c *wattwise.Client, r *v1.ResetJobRequest) (proto.Message, error) {
		job, err := c.ResetJob(ctx, r.JobId)
		return &v1.ResetJobResponse{Job: job}, err
	}),
	"SetTrialExcluded": on(func(ctx context.Context, c *wattwise.Client, r *v1.SetTrialExcludedRequest) (proto.Message, error) {
		return c.SetTrialExcluded(ctx, r.Trial, r.GetExcluded())
	}),
	"SetBatchSizeBanned": on(func(ctx context.Context, c *wattwise.Client, r *v1.SetBatchSizeBannedRequest) (proto.Message, error) {
		job, err := c.SetBatchSizeBanned(ctx, r.JobId, int(r.BatchSize), r.GetBanned())
		return &v1.SetBatchSizeBannedResponse{Job: job}, err
	}),
	"SetPinnedBatchSize": on(func(ctx context.Context, c *wattwise.Client, r *v1.SetPinnedBatchSizeRequest) (proto.Message, error) {
		job, err := c.SetPinnedBatchSize(ctx, r.JobId, r.BatchSize)
		return &v1.SetPinnedBatchSizeResponse{Job: job}, err
	}),
	"ReadmitBatchSize": on(func(ctx context.Context, c *wattwise.Client, r *v1.ReadmitBatchSizeRequest) (proto.Message, error) {
		job, err := c.ReadmitBatchSize(ctx, r.JobId, int(r.BatchSize))
		return &v1.ReadmitBatchSizeResponse{Job: job}, err
	}),
	"SetJobPaused": on(func(ctx context.Context, c *wattwise.Client, r *v1.SetJobPausedRequest) (proto.Message, error) {
		job, err := c.SetJobPaused(ctx, r.JobId, r.GetPaused())
		return &v1.SetJobPausedResponse{Job: job}, err
	}),
	"RequestBaseline": on(func(ctx context.Context, c *wattwise.Client, r *v1.RequestBaselineRequest) (proto.Message, error) {
		job, err := c.RequestBaseline(ctx, r.JobId)
		return &v1.RequestBaselineResponse{Job: job}, err
	}),
	"SetBaselineEvery": on(func(ctx context.Context, c *wattwise.Client, r *v1.SetBaselineEveryRequest) (proto.Message, error) {
		job, err := c.SetBaselineEvery(ctx, r.JobId, int(r.GetEvery()))
		return &v1.SetBaselineEveryResponse{Job: job}, err
	}),
	"SetJobPolicy": on(func(ctx context.Context, c *wattwise.Client, r *v1.SetJobPolicyRequest) (proto.Message, error) {
		job, err := c.SetJobPolicy(ctx, r.JobId, r.Policy)
		return &v1.SetJobPolicyResponse{Job: job}, err
	}),
}

// on decodes the request of a call.
func on[T any, Request interface {
	*T
	proto.Message
}](make func(context.Context, *wattwise.Client, Request) (proto.Message, error)) unaryCall {
	return func(ctx context.Context, client *wattwise.Client, text []byte) (proto.Message, error) {
		request := Request(new(T))
		if err := protojson.Unmarshal(text, request); err != nil {
			return nil, err
		}
		return make(ctx, client, request)
	}
}
