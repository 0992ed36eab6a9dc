package wattwise

import (
	"context"

	v1 "wattwise/v1"
)

// ResetJob begins the job's search again. Its trials stay in the history but no longer count.
func (c *Client) ResetJob(ctx context.Context, jobID string) (*v1.Job, error) {
	request := &v1.ResetJobRequest{JobId: jobID, RequestId: NewID()}
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		return c.Control.ResetJob(ctx, request)
	})
}

// SetTrialExcluded excludes a trial from the job's search, or includes it again.
func (c *Client) SetTrialExcluded(ctx context.Context, trial *v1.TrialId, excluded bool) (response *v1.SetTrialExcludedResponse, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) (err error) {
		response, err = c.Control.SetTrialExcluded(ctx, &v1.SetTrialExcludedRequest{Trial: trial, Excluded: &excluded})
		return err
	})
	return response, err
}

// SetBatchSizeBanned bans a batch size, so that the search does not choose it, or lifts its ban.
func (c *Client) SetBatchSizeBanned(ctx context.Context, jobID string, batchSize int, banned bool) (*v1.Job, error) {
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		request := &v1.SetBatchSizeBannedRequest{JobId: jobID, BatchSize: int32(batchSize), Banned: &banned}
		return c.Control.SetBatchSizeBanned(ctx, request)
	})
}

// SetPinnedBatchSize pins a batch size, so that every launch gets it; nil unpins it.
func (c *Client) SetPinnedBatchSize(ctx context.Context, jobID string, batchSize *int32) (*v1.Job, error) {
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		return c.Control.SetPinnedBatchSize(ctx, &v1.SetPinnedBatchSizeRequest{JobId: jobID, BatchSize: batchSize})
	})
}

// ReadmitBatchSize readmits a batch size to the search: its failures, its memory and its pruning no longer count.
func (c *Client) ReadmitBatchSize(ctx context.Context, jobID string, batchSize int) (*v1.Job, error) {
	request := &v1.ReadmitBatchSizeRequest{JobId: jobID, BatchSize: int32(batchSize), RequestId: NewID()}
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		return c.Control.ReadmitBatchSize(ctx, request)
	})
}

// SetJobPaused pauses the job's search, so that launches get the best known batch size, or resumes it.
func (c *Client) SetJobPaused(ctx context.Context, jobID string, paused bool) (*v1.Job, error) {
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		return c.Control.SetJobPaused(ctx, &v1.SetJobPausedRequest{JobId: jobID, Paused: &paused})
	})
}

// RequestBaseline requests that the job's next launch gets the default batch size, to compare with.
func (c *Client) RequestBaseline(ctx context.Context, jobID string) (*v1.Job, error) {
	request := &v1.RequestBaselineRequest{JobId: jobID, RequestId: NewID()}
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		return c.Control.RequestBaseline(ctx, request)
	})
}

// SetBaselineEvery gives one launch in so many the default batch size from now on, 2 or more; 0 ends that.
func (c *Client) SetBaselineEvery(ctx context.Context, jobID string, every int) (*v1.Job, error) {
	number := int32(every)
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		return c.Control.SetBaselineEvery(ctx, &v1.SetBaselineEveryRequest{JobId: jobID, Every: &number})
	})
}

// SetJobPolicy changes the job's policy and its parameters; the search is rebuilt from the job's trials.
func (c *Client) SetJobPolicy(ctx context.Context, jobID string, policy *v1.PolicySpec) (*v1.Job, error) {
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		return c.Control.SetJobPolicy(ctx, &v1.SetJobPolicyRequest{JobId: jobID, Policy: policy})
	})
}

type hasJob interface{ GetJob() *v1.Job }

func (c *Client) control(ctx context.Context, call func(context.Context) (hasJob, error)) (job *v1.Job, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) error {
		response, err := call(ctx)
		job = response.GetJob()
		return err
	})
	return job, err
}
