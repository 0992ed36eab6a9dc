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

// SetBatchSizeState allows, bans or pins a batch size: BATCH_SIZE_STATUS_ALLOWED, which also forgets its failures and
// misses, _BANNED or _PINNED.
func (c *Client) SetBatchSizeState(ctx context.Context, jobID string, batchSize int, status v1.BatchSizeStatus) (*v1.Job, error) {
	return c.control(ctx, func(ctx context.Context) (hasJob, error) {
		request := &v1.SetBatchSizeStateRequest{JobId: jobID, BatchSize: int32(batchSize), Status: status}
		return c.Control.SetBatchSizeState(ctx, request)
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

// SetJobPolicy changes the job's policy; the search is rebuilt from the job's trials.
func (c *Client) SetJobPolicy(ctx context.Context, jobID string, policy v1.Policy) (*v1.Job, error) {
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
