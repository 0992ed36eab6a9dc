package wattwise

import (
	"context"
	"sync"
	"time"

	v1 "wattwise/v1"
)

const (
	heartbeatsPerLease = 3
	longestInterval    = time.Minute
	// The longest time that an unavailable server delays a training.
	sessionTimeout = 5 * time.Second
)

// TrialSession is a launch's trial while it trains. Its goroutines renew the lease by heartbeats, receive pushed stops and
// send the report that could not be delivered. Its methods are safe for concurrent use.
type TrialSession struct {
	// Trial is the dispatched trial; train with Trial.Id.BatchSize.
	Trial *v1.Trial
	// Reason is one sentence that explains the choice of the batch size.
	Reason string
	// Monitor says what measured the energy of the reports; nil if that is unknown. Set it before the first report.
	Monitor *v1.Monitor

	client  *Client
	spec    *v1.JobSpec
	cancel  context.CancelFunc
	done    chan struct{}
	stopped chan struct{}
	wake    chan struct{}

	mutex sync.Mutex
	// The decision to stop.
	decision *v1.Decision
	// The newest report that could not be delivered, and why.
	undelivered *v1.TrainingResult
	outage      error
}

// Launch registers the job, requests a trial and opens a session for it. Heartbeats end with the context or with End.
func (c *Client) Launch(ctx context.Context, spec *v1.JobSpec) (*TrialSession, error) {
	job, err := c.RegisterJob(ctx, spec)
	if err != nil {
		return nil, err
	}
	resolved := job.Job.Spec
	response, err := c.GetNextBatchSize(ctx, resolved.GetJobId(), NewRequestID())
	if err != nil {
		return nil, err
	}
	sessionCtx, cancel := context.WithCancel(ctx)
	session := &TrialSession{
		Trial: response.Trial, Reason: response.Reason, client: c, spec: resolved,
		cancel: cancel, done: make(chan struct{}), stopped: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	go session.keepAlive(sessionCtx, heartbeatInterval(resolved.GetTrialLeaseSeconds()))
	return session, nil
}

// BatchSize returns the batch size to train with.
func (s *TrialSession) BatchSize() int {
	return int(s.Trial.Id.BatchSize)
}

// Stopped returns a channel that is closed when training must stop, also in the middle of an epoch.
func (s *TrialSession) Stopped() <-chan struct{} {
	return s.stopped
}

// Report reports the epoch that just ended, counted from 1, with the sums of seconds and joules since the first epoch, and
// returns the decision. After a stop, it returns that decision and sends nothing.
//
// While the server is away, the session keeps the newest report and sends it when the server is back; ServerAway holds for
// the error: continue training. At the target or after the last epoch, it returns a decision to stop even without the
// server.
func (s *TrialSession) Report(ctx context.Context, epoch int, seconds, joules, metric float64) (*v1.Decision, error) {
	result := &v1.TrainingResult{
		Trial: s.Trial.Id, CurrentEpoch: int32(epoch), TimeSeconds: seconds, EnergyJoules: joules, Metric: metric,
		Monitor: s.Monitor,
	}
	decision, err := s.answerLocally(result)
	if decision == nil && err == nil {
		if decision, err = s.deliver(ctx, result); s.undeliveredReport() != nil {
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
	if ServerAway(err) && ctx.Err() == nil {
		if stop := decideWithoutServer(s.spec, result); stop != nil {
			return stop, nil
		}
	}
	return decision, err
}

// End ends the heartbeats, delivers an undelivered report, and ends the trial unless a decision has ended it. Call it
// whenever training ends; a second call changes nothing.
func (s *TrialSession) End(reason v1.EndReason) error {
	s.cancel()
	<-s.done
	// Not the context of the training, which may be cancelled.
	ctx, cancel := context.WithTimeout(context.Background(), sessionTimeout)
	defer cancel()
	if result := s.undeliveredReport(); result != nil {
		if _, err := s.deliver(ctx, result); ServerAway(err) {
			return err
		}
	}
	select {
	case <-s.stopped:
		return nil
	default:
		_, err := s.client.EndTrial(ctx, s.Trial.Id, reason)
		return err
	}
}

// keepAlive renews the lease until the trial ends: by a stream, on which the server can push a stop, or by unary calls
// while there is no stream.
func (s *TrialSession) keepAlive(ctx context.Context, interval time.Duration) {
	defer close(s.done)
	for ctx.Err() == nil {
		start, pause := time.Now(), interval
		if s.sendHeartbeat(ctx) && s.undeliveredReport() == nil {
			s.listen(ctx, interval)
		}
		// Try again soon if the server is away or a stream broke, but not if the server accepts no stream.
		if (s.undeliveredReport() != nil || time.Since(start) > longestPause) && pause > longestPause {
			pause = longestPause
		}
		select {
		case <-ctx.Done():
		case <-s.stopped:
			return
		case <-s.wake:
		case <-time.After(jittered(pause)):
		}
	}
}

// sendHeartbeat sends the undelivered report, or a heartbeat if there is none. It returns whether the server is up.
func (s *TrialSession) sendHeartbeat(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	if result := s.undeliveredReport(); result != nil {
		_, err := s.deliver(ctx, result)
		return !ServerAway(err)
	}
	decision, err := s.client.Heartbeat(ctx, s.Trial.Id)
	s.apply(decision)
	return !ServerAway(err)
}

// listen holds a stream open with heartbeats until it breaks or the trial ends.
func (s *TrialSession) listen(ctx context.Context, interval time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.Trainer.StreamResults(s.client.Outgoing(ctx))
	if err != nil {
		return
	}
	go func() {
		heartbeat := &v1.StreamResultsRequest_Heartbeat{Heartbeat: &v1.HeartbeatRequest{Trial: s.Trial.Id}}
		for stream.Send(&v1.StreamResultsRequest{Event: heartbeat}) == nil {
			select {
			case <-ctx.Done():
				return
			case <-s.stopped:
				stream.CloseSend()
				return
			case <-s.wake:
				// A report could not be delivered: try unary calls.
				cancel()
				return
			case <-time.After(interval):
			}
		}
	}()
	for {
		response, err := stream.Recv()
		if err != nil {
			return
		}
		s.apply(response.GetDecision())
	}
}

// deliver sends a report, and keeps it if the server is away.
func (s *TrialSession) deliver(ctx context.Context, result *v1.TrainingResult) (*v1.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	decision, err := s.client.ReportResult(ctx, result)
	s.apply(decision)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.undelivered != nil && s.undelivered.CurrentEpoch > result.CurrentEpoch {
		return decision, err
	}
	if err != nil && (ServerAway(err) || ctx.Err() != nil) {
		s.undelivered, s.outage = result, err
	} else {
		s.undelivered, s.outage = nil, nil
	}
	return decision, err
}

// answerLocally answers a report without a call if the trial has ended or the server is known to be away.
func (s *TrialSession) answerLocally(result *v1.TrainingResult) (*v1.Decision, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.decision != nil || s.undelivered == nil {
		return s.decision, nil
	}
	s.undelivered = result
	return nil, s.outage
}

func (s *TrialSession) undeliveredReport() *v1.TrainingResult {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.undelivered
}

func (s *TrialSession) apply(decision *v1.Decision) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if decision.GetStopTrain() && s.decision == nil {
		s.decision = decision
		close(s.stopped)
	}
}

// decideWithoutServer stops a training that has reached its target or its last epoch, as the server would. It returns nil
// while training continues.
func decideWithoutServer(spec *v1.JobSpec, result *v1.TrainingResult) *v1.Decision {
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

// heartbeatInterval returns the time between heartbeats. A lease of 0 never expires; its heartbeats only show that the
// server is up.
func heartbeatInterval(leaseSeconds float64) time.Duration {
	interval := time.Duration(leaseSeconds * float64(time.Second) / heartbeatsPerLease)
	if interval <= 0 || interval > longestInterval {
		return longestInterval
	}
	return interval
}
