package wattwise

import (
	"context"
	"sync"
	"time"

	v1 "wattwise/v1"
)

const (
	beatsPerLease = 3
	// A training does not wait longer for a server that is away.
	patience = 5 * time.Second
)

// Launch is one trial of a job while it trains: it is reported, its lease is kept by heartbeats, and it is ended.
type Launch struct {
	// Trial is what the server dispatched; train with Trial.Id.BatchSize.
	Trial *v1.Trial
	// Reason says why this batch size.
	Reason string

	client  *Client
	mutex   sync.Mutex
	stopped chan struct{}
	over    bool
	ended   context.CancelFunc
}

// Begin registers the job and asks for this launch's trial.
func (c *Client) Begin(ctx context.Context, spec *v1.JobSpec) (*Launch, error) {
	job, err := c.RegisterJob(ctx, spec)
	if err != nil {
		return nil, err
	}
	answer, err := c.NextBatchSize(ctx, job.Job.Spec.GetJobId(), NewRequestID())
	if err != nil {
		return nil, err
	}
	beating, ended := context.WithCancel(ctx)
	launch := &Launch{Trial: answer.Trial, Reason: answer.Reason, client: c, stopped: make(chan struct{}), ended: ended}
	if lease := job.Job.Spec.GetTrialLeaseSeconds(); lease > 0 {
		go launch.beat(beating, time.Duration(lease*float64(time.Second))/beatsPerLease)
	}
	return launch, nil
}

// BatchSize is the one to train with.
func (l *Launch) BatchSize() int {
	return int(l.Trial.Id.BatchSize)
}

// Stopped is closed once the server has said that the trial is over, be it in mid-epoch.
func (l *Launch) Stopped() <-chan struct{} {
	return l.stopped
}

// Report reports the epoch that just ended, counted from 1. Seconds and joules are sums since the first epoch.
func (l *Launch) Report(ctx context.Context, epoch int, seconds, joules, metric float64) (*v1.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	decision, err := l.client.ReportResult(ctx, &v1.TrainingResult{
		Trial: l.Trial.Id, CurrentEpoch: int32(epoch), TimeSeconds: seconds, EnergyJoules: joules, Metric: metric,
	})
	l.heard(decision)
	return decision, err
}

// End ends the trial unless it is decided, and the heartbeats. Call it however training ends.
func (l *Launch) End(reason v1.EndReason) error {
	l.ended()
	// Not the context of the training, which may be what was cancelled.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := l.client.EndTrial(ctx, l.Trial.Id, reason)
	return err
}

func (l *Launch) beat(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.stopped:
			return
		case <-ticker.C:
			// A server that is away is asked again with the next beat.
			decision, _ := l.client.Heartbeat(ctx, l.Trial.Id)
			l.heard(decision)
		}
	}
}

func (l *Launch) heard(decision *v1.Decision) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if decision.GetStopTrain() && !l.over {
		l.over = true
		close(l.stopped)
	}
}
