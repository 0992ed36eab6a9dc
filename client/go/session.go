package wattwise

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "wattwise/v1"
)

const (
	// The time between heartbeats if the server names none, which then only show that it is up.
	longestInterval = time.Minute
	// Below a third of the shortest lease.
	shortestInterval = 250 * time.Millisecond
	// The default of JobSpec.max_epochs, for a job that no server has registered.
	defaultMaxEpochs = 100
	// The longest time that an unavailable server delays a training.
	sessionTimeout = 5 * time.Second

	jobNotFound   = "ERROR_REASON_JOB_NOT_FOUND"
	trialNotFound = "ERROR_REASON_TRIAL_NOT_FOUND"
	trialDeleted  = "ERROR_REASON_TRIAL_DELETED"
	nothingLeft   = "ERROR_REASON_NO_BATCH_SIZE_LEFT"
)

// TrialSession is a launch's trial while it trains. Its goroutines renew the lease by heartbeats, receive pushed stops and
// send the report that could not be delivered. Its methods are safe for concurrent use.
type TrialSession struct {
	// Trial is the dispatched trial; train with Trial.BatchSize. Its number is 0 if it trains without the server.
	Trial *v1.Trial
	// Reason is one sentence that explains the choice of the batch size.
	Reason string
	// Monitor says what measured the energy of the reports; nil if that is unknown. Set it before the first report.
	Monitor *v1.Monitor

	client *Client
	// The job as the trainer named it, and with the server's defaults.
	job, spec *v1.JobSpec
	launchID  string
	start     time.Time
	cancel    context.CancelFunc
	done      chan struct{}
	stopped   chan struct{}
	wake      chan struct{}

	mutex sync.Mutex
	state TrialState
	// The decision to stop. The server's replaces this session's own, unless the session is detached.
	decision *v1.Decision
	// The newest report that could not be delivered, and why.
	undelivered *v1.TrainingResult
	outage      error
	// The time between heartbeats, as the server's newest answer says.
	interval     time.Duration
	measurements []*v1.Measurement
	// The reason of the first End.
	ended  v1.EndReason
	warned map[v1.WarningReason]bool
}

// Launch registers the job, requests a trial and opens a session for it. Heartbeats end with the context or with End.
func (c *Client) Launch(ctx context.Context, spec *v1.JobSpec) (*TrialSession, error) {
	return c.launch(ctx, spec, 0, true)
}

// LaunchWithFallback is a Launch that always trains: if the server cannot be reached, or no batch size is left to try, the
// session trains with the fallback, one of the job's batch sizes. It then stops at its own target or last epoch, and End
// imports the trial.
func (c *Client) LaunchWithFallback(ctx context.Context, spec *v1.JobSpec, fallback int) (*TrialSession, error) {
	return c.launch(ctx, spec, fallback, true)
}

// Attempts trains one trial after another, at most maxTries, until one reaches its target; it returns whether one did.
//
// train gets the session of each trial, and the number of the attempt from 0 on, for its seed. It returns when training has
// stopped; then Attempts ends the trial. No further trial follows an error of train, a training that returns before the
// decision to stop, or the deletion of the job; but one follows if train has ended its trial with
// END_REASON_OUT_OF_MEMORY. fallback is that of LaunchWithFallback; 0: none.
func (c *Client) Attempts(ctx context.Context, spec *v1.JobSpec, maxTries, fallback int,
	train func(session *TrialSession, attempt int) error) (reached bool, err error) {
	register := true
	for attempt := 0; attempt < maxTries; attempt++ {
		session, err := c.launch(ctx, spec, fallback, register)
		if attempt > 0 && ReasonOf(err) == jobNotFound {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		err = train(session, attempt)
		decision, reason := session.stop(), v1.EndReason_END_REASON_COMPLETED
		switch {
		case ctx.Err() != nil:
			reason = v1.EndReason_END_REASON_PREEMPTED
		case err != nil:
			reason = v1.EndReason_END_REASON_ERROR
		}
		if failed := session.End(reason); failed != nil {
			c.warn(fmt.Sprintf("the end of the trial could not be reported: %v", failed))
		}
		outOfMemory := session.endReason() == v1.EndReason_END_REASON_OUT_OF_MEMORY
		if err != nil || decision.GetTargetReached() || decision == nil && !outOfMemory {
			return decision.GetTargetReached(), err
		}
		// A job that was deleted must not be registered again.
		register = session.isAlone()
	}
	return false, nil
}

func (c *Client) launch(ctx context.Context, spec *v1.JobSpec, fallback int, register bool) (*TrialSession, error) {
	if fallback != 0 && !contains(spec.BatchSizes, fallback) {
		return nil, fmt.Errorf("the fallback %d is not one of the batch sizes %v", fallback, spec.BatchSizes)
	}
	sessionCtx, cancel := context.WithCancel(ctx)
	session := &TrialSession{
		client: c, job: spec, spec: spec, launchID: NewID(), start: time.Now(),
		cancel: cancel, done: make(chan struct{}), stopped: make(chan struct{}), wake: make(chan struct{}, 1),
		state: TrialState{LinkTracked, ProgressRunning}, warned: map[v1.WarningReason]bool{},
	}
	err := session.request(ctx, register)
	switch {
	case err == nil:
		session.interval = heartbeatInterval(session.Trial.HeartbeatInterval)
		go session.keepAlive(sessionCtx)
		return session, nil
	case fallback != 0 && ctx.Err() == nil && (ServerAway(err) && !denied(err) || ReasonOf(err) == nothingLeft):
		session.fallBack(fallback, err)
		return session, nil
	}
	cancel()
	return nil, err
}

func (s *TrialSession) request(ctx context.Context, register bool) error {
	if register {
		response, err := s.client.RegisterJob(ctx, s.job)
		if err != nil {
			return err
		}
		s.spec = response.Job.Spec
	}
	response, err := s.client.GetNextBatchSize(ctx, s.job.GetJobId(), s.launchID)
	if err != nil {
		return err
	}
	s.Trial, s.Reason = response.Trial, response.Trial.Reason
	return nil
}

func (s *TrialSession) fallBack(batchSize int, cause error) {
	// The server may have dispatched a trial with another batch size for the first id, whose answer was lost.
	s.launchID = NewID()
	s.Trial = &v1.Trial{Id: &v1.TrialId{JobId: s.job.GetJobId(), LaunchId: s.launchID}, BatchSize: int32(batchSize)}
	s.Reason = fmt.Sprintf("the fallback batch size %d, because there is no trial: %v", batchSize, cause)
	close(s.done)
	s.trainAlone("training with " + s.Reason)
}

// BatchSize returns the batch size to train with.
func (s *TrialSession) BatchSize() int {
	return int(s.Trial.BatchSize)
}

// Stopped returns a channel that is closed when training must stop, also in the middle of an epoch.
func (s *TrialSession) Stopped() <-chan struct{} {
	return s.stopped
}

// Report reports the epoch that just ended, counted from 1, with the sums of seconds and joules since the first epoch, and
// returns the decision. joules is nil if no energy was measured. After a stop, it returns that decision and sends nothing.
//
// While the server is away, the session keeps the newest report and sends it when the server is back; ServerAway holds for
// the error: continue training. At the target or after the last epoch, it returns a decision to stop even without the
// server. If the server does not know the trial, such as after the loss of its database, the session warns once and decides
// alone from then on.
func (s *TrialSession) Report(ctx context.Context, epoch int, seconds float64, joules *float64, metric float64) (
	*v1.Decision, error) {
	if joules != nil {
		// The caller may change its variable before the report is delivered.
		copied := *joules
		joules = &copied
	}
	result := &v1.TrainingResult{
		Trial:       s.Trial.Id,
		Measurement: &v1.Measurement{Epoch: int32(epoch), TimeSeconds: &seconds, EnergyJoules: joules, Metric: &metric},
		Monitor:     s.Monitor,
	}
	decision, err := s.answerLocally(result)
	if decision != nil {
		return decision, nil
	}
	if err == nil && !s.isAlone() {
		if decision, err = s.deliver(ctx, result); s.undeliveredReport() != nil {
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
	if err != nil && (!ServerAway(err) || ctx.Err() != nil) {
		return nil, err
	}
	s.keep(result)
	if decision == nil {
		return s.decideWithoutServer(result, err)
	}
	if !decision.StopTrain && decide(s.spec, result).StopTrain {
		s.client.warn(fmt.Sprintf("training stops although the server lets trial %d continue after epoch %d, in which it "+
			"reached its target or ended: a fault", s.Trial.Id.TrialNumber, epoch))
		return s.decideWithoutServer(result, nil)
	}
	return decision, nil
}

// End ends the heartbeats, delivers an undelivered report, and ends the trial unless a decision has ended it. A trial that
// the server does not know is imported with all its measurements. Call it whenever training ends. If ServerAway holds for
// the error, ImportRequest has what could not be delivered. A second call delivers that with the first reason, and changes
// nothing once the server knows how the trial ended.
func (s *TrialSession) End(reason v1.EndReason) error {
	s.mutex.Lock()
	if s.ended == v1.EndReason_END_REASON_UNSPECIFIED {
		s.ended = reason
	}
	reason = s.ended
	s.state = s.state.After(EventClosed)
	s.mutex.Unlock()
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
	state := s.State()
	if state.Progress == ProgressSettled {
		return nil
	}
	if state.Link != LinkDetached {
		if state.Progress == ProgressDecided {
			s.note(EventDelivered)
			return nil
		}
		_, err := s.client.EndTrial(ctx, s.Trial.Id, reason)
		if err == nil {
			s.note(EventDelivered)
		}
		if s.stopIfDeleted(err) {
			return nil
		}
		if !unknownTrial(err) {
			return err
		}
		s.trainAlone(fmt.Sprintf("the trial is imported, because the server does not know it: %v", err))
	}
	if _, err := s.client.RegisterJob(ctx, s.job); err != nil {
		return err
	}
	if _, err := s.client.ImportTrial(ctx, s.ImportRequest(reason)); err != nil {
		return err
	}
	s.note(EventDelivered)
	return nil
}

// ImportRequest returns the trial with all its measurements as a request of ImportTrial. Store it if the server is still
// away when training ends, and send it later, after RegisterJob.
func (s *TrialSession) ImportRequest(reason v1.EndReason) *v1.ImportTrialRequest {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return &v1.ImportTrialRequest{
		JobId: s.job.GetJobId(), LaunchId: s.launchID, BatchSize: s.Trial.BatchSize, EndReason: reason,
		Measurements: append([]*v1.Measurement(nil), s.measurements...), StartTime: timestamppb.New(s.start),
		Monitor: s.Monitor,
	}
}

// keepAlive renews the lease until the trial ends: by a stream, on which the server can push a stop, or by unary calls
// while there is no stream.
func (s *TrialSession) keepAlive(ctx context.Context) {
	defer close(s.done)
	// How many streams in a row broke soon, as all streams do through some proxies.
	broken := 0
	for ctx.Err() == nil && !s.isAlone() {
		start := time.Now()
		if s.sendHeartbeat(ctx) && s.undeliveredReport() == nil && !s.isAlone() && s.listen(ctx) {
			broken++
		}
		pause := s.heartbeatInterval()
		lasted := time.Since(start) > longestPause
		if lasted {
			broken = 0
		}
		// Try again soon if the server is away or a stream broke, but not if the server accepts no stream.
		if (s.undeliveredReport() != nil || lasted || broken == 1) && pause > longestPause {
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
	s.stopIfDeleted(err)
	s.forgetIfUnknown(err)
	if ServerAway(err) {
		s.note(EventUnreachable)
	}
	return !ServerAway(err)
}

// listen holds a stream open with heartbeats until it breaks or the trial ends. It returns whether its connection broke.
func (s *TrialSession) listen(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.Trainer.StreamResults(s.client.Outgoing(ctx))
	if err != nil {
		return unavailable(FromStatus(err))
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
			case <-time.After(s.heartbeatInterval()):
			}
		}
	}()
	for {
		response, err := stream.Recv()
		if err != nil {
			err = FromStatus(err)
			s.stopIfDeleted(err)
			s.forgetIfUnknown(err)
			return unavailable(err)
		}
		decision := response.GetDecision()
		if checkDecision("StreamResults", decision) != nil || !decision.StopTrain {
			// Heartbeats have no answer: a server that sends decisions without end would take time from the training.
			return false
		}
		s.apply(decision)
	}
}

// deliver sends a report, and keeps it if the server is away. It returns neither a decision nor an error if the server does
// not know the trial.
func (s *TrialSession) deliver(ctx context.Context, result *v1.TrainingResult) (*v1.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	decision, err := s.client.ReportResult(ctx, result)
	s.apply(decision)
	if s.stopIfDeleted(err) {
		return s.stop(), nil
	}
	if s.forgetIfUnknown(err) {
		return nil, nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if ServerAway(err) {
		s.state = s.state.After(EventUnreachable)
	}
	if s.state.Link == LinkDetached || s.undelivered != nil && s.undelivered.Measurement.Epoch > result.Measurement.Epoch {
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
	if s.isStopped() {
		return s.decision, nil
	}
	if s.undelivered == nil {
		return nil, nil
	}
	s.undelivered = result
	return nil, s.outage
}

// keep keeps a measurement, in case the trial has to be imported.
func (s *TrialSession) keep(result *v1.TrainingResult) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if last := len(s.measurements) - 1; last >= 0 && s.measurements[last].Epoch >= result.Measurement.Epoch {
		return
	}
	kept := proto.Clone(result.Measurement).(*v1.Measurement)
	kept.ReportTime = timestamppb.Now()
	s.measurements = append(s.measurements, kept)
}

func (s *TrialSession) undeliveredReport() *v1.TrainingResult {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.undelivered
}

func (s *TrialSession) endReason() v1.EndReason {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.ended
}

func (s *TrialSession) heartbeatInterval() time.Duration {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.interval
}

// State returns the link to the server and the progress of the trial.
func (s *TrialSession) State() TrialState {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.state
}

func (s *TrialSession) note(event TrialEvent) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.state = s.state.After(event)
}

// isAlone reports whether the session trains without the server, which does not know the trial. End then imports it.
func (s *TrialSession) isAlone() bool {
	return s.State().Link == LinkDetached
}

// isStopped reports whether the decision to stop is final.
func (s *TrialSession) isStopped() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

// stop returns the decision to stop; nil if there was none.
func (s *TrialSession) stop() *v1.Decision {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.decision
}

func (s *TrialSession) apply(decision *v1.Decision) {
	s.mutex.Lock()
	if decision.GetStopTrain() && !s.isStopped() {
		s.decision = decision
		close(s.stopped)
	}
	switch {
	case decision.GetEndReason() == v1.EndReason_END_REASON_JOB_DELETED:
		s.state = s.state.After(EventDeleted)
	case decision.GetStopTrain():
		s.state = s.state.After(EventStopped)
	case decision != nil:
		s.state = s.state.After(EventAnswered)
	}
	if decision != nil {
		s.interval = heartbeatInterval(decision.HeartbeatInterval)
	}
	var messages []string
	for _, warning := range decision.GetWarnings() {
		if !s.warned[warning.Reason] && len(s.warned) < mostWarnings {
			s.warned[warning.Reason] = true
			messages = append(messages, warning.Message)
		}
	}
	s.mutex.Unlock()
	for _, message := range messages {
		s.client.warn(message)
	}
}

// stopIfDeleted stops the training if the error says that the trial was deleted with its job, which must not come back.
func (s *TrialSession) stopIfDeleted(err error) bool {
	if ReasonOf(err) != trialDeleted {
		return false
	}
	s.apply(&v1.Decision{StopTrain: true, EndReason: v1.EndReason_END_REASON_JOB_DELETED, Message: err.Error()})
	return true
}

// forgetIfUnknown lets the session train alone if the error says that the server does not know the trial.
func (s *TrialSession) forgetIfUnknown(err error) bool {
	if unknownTrial(err) {
		s.trainAlone(fmt.Sprintf("training continues without the server, which does not know the trial: %v", err))
		return true
	}
	return false
}

func (s *TrialSession) trainAlone(warning string) {
	s.mutex.Lock()
	first := s.state.Link != LinkDetached
	s.state = s.state.After(EventUnknown)
	s.undelivered, s.outage = nil, nil
	s.mutex.Unlock()
	if first {
		s.client.warn(warning)
	}
}

// decideWithoutServer stops a training that has reached its target or its last epoch, as the server would. While training
// continues, it returns the outage, if there is one.
func (s *TrialSession) decideWithoutServer(result *v1.TrainingResult, outage error) (*v1.Decision, error) {
	decision := decide(s.spec, result)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	detached := s.state.Link == LinkDetached
	if !decision.StopTrain {
		if detached {
			return decision, nil
		}
		return nil, outage
	}
	s.state = s.state.After(EventClosed)
	if !s.isStopped() {
		s.decision = decision
		if detached {
			close(s.stopped)
		}
	}
	return decision, nil
}

func decide(spec *v1.JobSpec, result *v1.TrainingResult) *v1.Decision {
	target, maxEpochs := spec.GetTarget(), int32(defaultMaxEpochs)
	if spec.MaxEpochs != nil {
		maxEpochs = *spec.MaxEpochs
	}
	reached := result.Measurement.GetMetric() >= target.GetValue()
	if target.GetDirection() == v1.Direction_DIRECTION_LOWER_IS_BETTER {
		reached = result.Measurement.GetMetric() <= target.GetValue()
	}
	switch {
	case reached:
		return &v1.Decision{StopTrain: true, TargetReached: true, EndReason: v1.EndReason_END_REASON_TARGET_REACHED,
			LastEpoch: result.Measurement.Epoch, Message: "target reached without the server"}
	case result.Measurement.Epoch >= maxEpochs:
		return &v1.Decision{StopTrain: true, EndReason: v1.EndReason_END_REASON_MAX_EPOCHS,
			LastEpoch: result.Measurement.Epoch, Message: "max epochs reached without the server"}
	}
	return &v1.Decision{LastEpoch: result.Measurement.Epoch, Message: "training continues without the server"}
}

func unknownTrial(err error) bool {
	reason := ReasonOf(err)
	return reason == jobNotFound || reason == trialNotFound
}

// heartbeatInterval returns the time between heartbeats that an answer of the server names.
func heartbeatInterval(named *durationpb.Duration) time.Duration {
	interval := named.AsDuration()
	switch {
	case named == nil || interval > longestInterval:
		return longestInterval
	case interval < shortestInterval:
		return shortestInterval
	}
	return interval
}

func contains(sizes []int32, size int) bool {
	for _, one := range sizes {
		if int(one) == size {
			return true
		}
	}
	return false
}
