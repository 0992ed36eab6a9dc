package wattwise

import (
	"context"
	"sync"
	"time"

	v1 "wattwise/v1"
)

const (
	beatsPerLease = 3
	longestBeat   = time.Minute
	// A training does not wait longer for a server that is away.
	patience = 5 * time.Second
)

// Launch is one trial of a job while it trains: it is reported, its lease is kept by heartbeats, and it is ended. Its
// methods may be called from any goroutine.
type Launch struct {
	// Trial is what the server dispatched; train with Trial.Id.BatchSize.
	Trial *v1.Trial
	// Reason says why this batch size.
	Reason string

	client  *Client
	spec    *v1.JobSpec
	silence context.CancelFunc
	silent  chan struct{}
	stopped chan struct{}
	wake    chan struct{}

	mutex    sync.Mutex
	decision *v1.Decision
	// The newest report that the server has not answered, and why.
	pending *v1.TrainingResult
	away    error
}

// Begin registers the job and asks for this launch's trial. Heartbeats end with the context, and with End.
func (c *Client) Begin(ctx context.Context, spec *v1.JobSpec) (*Launch, error) {
	job, err := c.RegisterJob(ctx, spec)
	if err != nil {
		return nil, err
	}
	resolved := job.Job.Spec
	answer, err := c.NextBatchSize(ctx, resolved.GetJobId(), NewRequestID())
	if err != nil {
		return nil, err
	}
	talking, silence := context.WithCancel(ctx)
	launch := &Launch{
		Trial: answer.Trial, Reason: answer.Reason, client: c, spec: resolved,
		silence: silence, silent: make(chan struct{}), stopped: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	go launch.talk(talking, beatOf(resolved.GetTrialLeaseSeconds()))
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

// Report reports the epoch that just ended, counted from 1. Seconds and joules are sums since the first epoch. Once the
// trial is over, the answer is the decision that ended it.
//
// While the server is away the newest report is kept, to be sent when it is back, and the error is one of ServerAway:
// train on. At the target or the last epoch the answer is to stop even so.
func (l *Launch) Report(ctx context.Context, epoch int, seconds, joules, metric float64) (*v1.Decision, error) {
	result := &v1.TrainingResult{
		Trial: l.Trial.Id, CurrentEpoch: int32(epoch), TimeSeconds: seconds, EnergyJoules: joules, Metric: metric,
	}
	decision, err := l.keep(result)
	if decision == nil && err == nil {
		if decision, err = l.deliver(ctx, result); l.kept() != nil {
			select {
			case l.wake <- struct{}{}:
			default:
			}
		}
	}
	if ServerAway(err) && ctx.Err() == nil {
		if alone := decisionWithoutServer(l.spec, result); alone != nil {
			return alone, nil
		}
	}
	return decision, err
}

// End delivers a report that is kept, ends the trial unless it is decided, and ends the heartbeats. Call it however
// training ends; a second call does nothing that is new.
func (l *Launch) End(reason v1.EndReason) error {
	l.silence()
	<-l.silent
	// Not the context of the training, which may be what was cancelled.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if pending := l.kept(); pending != nil {
		if _, err := l.deliver(ctx, pending); ServerAway(err) {
			return err
		}
	}
	select {
	case <-l.stopped:
		return nil
	default:
		_, err := l.client.EndTrial(ctx, l.Trial.Id, reason)
		return err
	}
}

// talk keeps the lease until the trial is over: by a stream, over which a stop comes in mid-epoch, and by single calls
// where there is none.
func (l *Launch) talk(ctx context.Context, every time.Duration) {
	defer close(l.silent)
	for ctx.Err() == nil {
		begun, rest := time.Now(), every
		if l.beat(ctx) && l.kept() == nil {
			l.listen(ctx, every)
		}
		// A server that takes no stream is left in peace; one that is away, or broke a stream, is looked for.
		if (l.kept() != nil || time.Since(begun) > longestPause) && rest > longestPause {
			rest = longestPause
		}
		select {
		case <-ctx.Done():
		case <-l.stopped:
			return
		case <-l.wake:
		case <-time.After(jittered(rest)):
		}
	}
}

// beat says that the trainer lives, with the report that is kept if there is one, and tells whether the server is there.
func (l *Launch) beat(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if pending := l.kept(); pending != nil {
		_, err := l.deliver(ctx, pending)
		return !ServerAway(err)
	}
	decision, err := l.client.Heartbeat(ctx, l.Trial.Id)
	l.heard(decision)
	return !ServerAway(err)
}

// listen holds a stream with heartbeats until it breaks or the trial is over.
func (l *Launch) listen(ctx context.Context, every time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.client.Trainer.StreamResults(l.client.Outgoing(ctx))
	if err != nil {
		return
	}
	go func() {
		beat := &v1.StreamResultsRequest_Heartbeat{Heartbeat: &v1.HeartbeatRequest{Trial: l.Trial.Id}}
		for stream.Send(&v1.StreamResultsRequest{Event: beat}) == nil {
			select {
			case <-ctx.Done():
				return
			case <-l.stopped:
				stream.CloseSend()
				return
			case <-l.wake:
				// A report was lost, for which the stream is given up.
				cancel()
				return
			case <-time.After(every):
			}
		}
	}()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return
		}
		l.heard(answer.GetDecision())
	}
}

// deliver sends a report, which is kept if the server is away.
func (l *Launch) deliver(ctx context.Context, result *v1.TrainingResult) (*v1.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	decision, err := l.client.ReportResult(ctx, result)
	l.heard(decision)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.pending != nil && l.pending.CurrentEpoch > result.CurrentEpoch {
		return decision, err
	}
	if err != nil && (ServerAway(err) || ctx.Err() != nil) {
		l.pending, l.away = result, err
	} else {
		l.pending, l.away = nil, nil
	}
	return decision, err
}

// keep is the answer to a report that needs no call: the trial is over, or the server is known to be away.
func (l *Launch) keep(result *v1.TrainingResult) (*v1.Decision, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.decision != nil || l.pending == nil {
		return l.decision, nil
	}
	l.pending = result
	return nil, l.away
}

func (l *Launch) kept() *v1.TrainingResult {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.pending
}

func (l *Launch) heard(decision *v1.Decision) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if decision.GetStopTrain() && l.decision == nil {
		l.decision = decision
		close(l.stopped)
	}
}

// decisionWithoutServer stops a training that has reached its target or its last epoch, as the server will when it
// hears of it; nil while training goes on.
func decisionWithoutServer(spec *v1.JobSpec, result *v1.TrainingResult) *v1.Decision {
	reached := result.Metric >= spec.GetTargetMetric()
	if !spec.GetHigherIsBetterMetric() {
		reached = result.Metric <= spec.GetTargetMetric()
	}
	switch {
	case reached:
		return &v1.Decision{StopTrain: true, TargetReached: true, Message: "target reached while the server is away"}
	case result.CurrentEpoch >= spec.GetMaxEpochs():
		return &v1.Decision{StopTrain: true, Message: "max epochs reached while the server is away"}
	}
	return nil
}

// beatOf is the time between heartbeats; of a lease that never runs out, they only show that the server is there.
func beatOf(leaseSeconds float64) time.Duration {
	every := time.Duration(leaseSeconds * float64(time.Second) / beatsPerLease)
	if every <= 0 || every > longestBeat {
		return longestBeat
	}
	return every
}
