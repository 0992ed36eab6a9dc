// Package wattwise is the client of a Wattwise server: calls with deadlines, retries and typed errors.
package wattwise

import (
	"context"
	crypto "crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	v1 "wattwise/v1"
)

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 3 * time.Second
)

// Client is a connection to a server, or to one of several. Its methods are safe for concurrent use.
type Client struct {
	// Timeout is the time that a call may take with all its retries. Change it only before the first call.
	Timeout time.Duration
	// Warn receives each warning about a session's trial once, and one about each outage; nil: they are logged. Change it
	// only before the first call.
	Warn func(message string)
	// Trainer, Reader, Control and Info are the stubs, for calls without a method here. Pass them a context of Outgoing.
	Trainer v1.BatchSizeOptimizerClient
	Reader  v1.JobReaderClient
	Control v1.JobControlClient
	Info    v1.ServerInfoClient

	channel *channel
	token   string
	address string
	// 1 from the first failed try of an outage, which is warned of, to the next answer.
	away int32

	mutex sync.Mutex
	// The jobs that were registered here: a trial must have one of the batch sizes.
	specs map[string]*v1.JobSpec
}

// NewClient creates a client for an address such as "localhost:50051". It connects in the background.
//
// Several servers on one database are a list, "host1:50051,host2:50051", "ipv4:10.0.0.1:50051,10.0.0.2:50051" or
// "ipv6:[fd00::1]:50051,[fd00::2]:50051", or a name with several addresses, "dns:///name:50051". The client uses one of
// them, in an order drawn at random, and the next if it cannot be reached, does not answer, or cannot use its database.
func NewClient(address string, credentials Credentials) (*Client, error) {
	servers, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	transport, err := credentials.dialOption(servers)
	if err != nil {
		return nil, err
	}
	reconnect := grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.5, MaxDelay: longestPause},
		// Short, since a server that does not answer delays the connection to the next one.
		MinConnectTimeout: 2 * time.Second,
	}
	// Detects a server that no longer answers within 40 seconds, and sooner if there is another one.
	alive := keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}
	if servers.several() {
		alive = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}
	}
	options := []grpc.DialOption{transport, grpc.WithConnectParams(reconnect), grpc.WithKeepaliveParams(alive)}
	if servers.isThisMachine() {
		// A proxy cannot reach this machine's loopback interface, and must not receive a token for it.
		options = append(options, grpc.WithNoProxy())
	}
	dial := servers.dialer(options...)
	channel, err := newChannel(servers.several(), dial)
	if err != nil {
		return nil, err
	}
	return &Client{
		Timeout: 30 * time.Second,
		Trainer: v1.NewBatchSizeOptimizerClient(channel),
		Reader:  v1.NewJobReaderClient(channel),
		Control: v1.NewJobControlClient(channel),
		Info:    v1.NewServerInfoClient(channel),
		channel: channel,
		token:   credentials.Token,
		address: address,
		specs:   map[string]*v1.JobSpec{},
	}, nil
}

// Close closes the connection. Calls in progress fail.
func (c *Client) Close() error {
	return c.channel.Close()
}

// NewID returns 128 random bits, by which the server recognizes a retry.
func NewID() string {
	return hex.EncodeToString(random(16))
}

func random(bytes int) []byte {
	bits := make([]byte, bytes)
	if _, err := crypto.Read(bits); err != nil {
		panic(err)
	}
	return bits
}

// jittered returns a random duration between half of a pause and the whole, so that the trainers of one server do not all
// retry at the same time. (Before Go 1.20, math/rand is the same in every process.)
func jittered(pause time.Duration) time.Duration {
	return pause/2 + time.Duration(randomBelow(int(pause/2)+1))
}

func randomBelow(bound int) int {
	return int(binary.BigEndian.Uint64(random(8)) % uint64(bound))
}

// Outgoing adds the metadata of a call: its id in the server's log, and the token.
func (c *Client) Outgoing(ctx context.Context) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", NewID())
	if c.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	}
	return ctx
}

// Retrying repeats a call until it succeeds, a retry does not help, or the timeout has passed. It returns context.Canceled
// if the context was cancelled.
func (c *Client) Retrying(callers context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.Outgoing(callers), c.Timeout)
	defer cancel()
	for pause := firstPause; ; pause *= 2 {
		err := FromStatus(call(ctx))
		if err != nil && callers.Err() == context.Canceled {
			return context.Canceled
		}
		if err == io.EOF {
			err = invalidAnswer("a call", "it is empty")
		}
		refused, ok := err.(*Error)
		if unavailable(err) {
			c.warnOfOutage(err)
		} else if !ok || refused.Code != codes.DeadlineExceeded {
			atomic.StoreInt32(&c.away, 0)
		}
		if !ok || !refused.Retryable() {
			return err
		}
		if pause > longestPause {
			pause = longestPause
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(jittered(pause)):
		}
	}
}

func (c *Client) warnOfOutage(cause error) {
	if atomic.SwapInt32(&c.away, 1) == 0 {
		c.warn(fmt.Sprintf("no answer from %s, calls are retried: %v", c.address, cause))
	}
}

func (c *Client) warn(message string) {
	if c.Warn != nil {
		c.Warn(message)
		return
	}
	log.Print(message)
}

// RegisterJob creates the job, or confirms that the one under its id has the identical configuration.
func (c *Client) RegisterJob(ctx context.Context, spec *v1.JobSpec) (response *v1.RegisterJobResponse, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) (err error) {
		if response, err = c.Trainer.RegisterJob(ctx, &v1.RegisterJobRequest{Job: spec}); err != nil {
			return err
		}
		return checkRegistered(response, spec)
	})
	if err == nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.specs[spec.JobId] = response.Job.Spec
	}
	return response, err
}

// GetNextBatchSize dispatches the next trial. Generate the launch id once per launch, with NewID: the same id returns the
// same trial.
func (c *Client) GetNextBatchSize(ctx context.Context, jobID, launchID string) (response *v1.GetNextBatchSizeResponse, err error) {
	return c.next(ctx, &v1.GetNextBatchSizeRequest{JobId: jobID, LaunchId: launchID})
}

// ResumeTrial is for a launch that continues from a checkpoint: if the trial with this launch id was preempted or lost,
// it is dispatched again.
func (c *Client) ResumeTrial(ctx context.Context, jobID, launchID string) (response *v1.GetNextBatchSizeResponse, err error) {
	return c.next(ctx, &v1.GetNextBatchSizeRequest{JobId: jobID, LaunchId: launchID, Resume: true})
}

func (c *Client) next(ctx context.Context, request *v1.GetNextBatchSizeRequest) (response *v1.GetNextBatchSizeResponse, err error) {
	if host, err := os.Hostname(); err == nil {
		// For people who look at the trial.
		request.Labels = map[string]string{"host": host}
	}
	err = c.Retrying(ctx, func(ctx context.Context) (err error) {
		if response, err = c.Trainer.GetNextBatchSize(ctx, request); err != nil {
			return err
		}
		return c.checkNext(response, request)
	})
	return response, err
}

func (c *Client) checkNext(response *v1.GetNextBatchSizeResponse, request *v1.GetNextBatchSizeRequest) error {
	const call = "GetNextBatchSize"
	if err := checkTrial(call, response.GetTrial(), request.JobId, request.LaunchId, 0); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if spec := c.specs[request.JobId]; spec != nil {
		return checkDispatched(call, response.Trial, spec)
	}
	return nil
}

// ReportResult reports an epoch with the sums since the trial's first epoch. A result without a metric is not sent.
func (c *Client) ReportResult(ctx context.Context, result *v1.TrainingResult) (decision *v1.Decision, err error) {
	if result.Measurement == nil || result.Measurement.Metric == nil {
		return nil, missingMetric("ERROR_REASON_INVALID_RESULT", "result.measurement.metric")
	}
	err = c.Retrying(ctx, func(ctx context.Context) error {
		response, err := c.Trainer.ReportResult(ctx, &v1.ReportResultRequest{Result: result})
		if err != nil {
			return err
		}
		decision = response.GetDecision()
		return checkDecision("ReportResult", decision)
	})
	return decision, err
}

// Heartbeat renews a trial's lease and returns whether to continue.
func (c *Client) Heartbeat(ctx context.Context, trial *v1.TrialId) (decision *v1.Decision, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) error {
		response, err := c.Trainer.Heartbeat(ctx, &v1.HeartbeatRequest{Trial: trial})
		if err != nil {
			return err
		}
		decision = response.GetDecision()
		return checkDecision("Heartbeat", decision)
	})
	return decision, err
}

// EndTrial ends a trial whose trainer exits. A trial that has ended before does not change.
func (c *Client) EndTrial(ctx context.Context, trial *v1.TrialId, reason v1.EndReason) (ended *v1.Trial, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) error {
		response, err := c.Trainer.EndTrial(ctx, &v1.EndTrialRequest{Trial: trial, EndReason: reason})
		if err != nil {
			return err
		}
		ended = response.GetTrial()
		return checkTrial("EndTrial", ended, trial.JobId, trial.LaunchId, trial.TrialNumber)
	})
	return ended, err
}

// LookupTrial returns the trial that the server has of a launch. It changes nothing on the server. The reason of the error
// says why there is no trial: ERROR_REASON_TRIAL_DELETED if it was deleted with its job.
func (c *Client) LookupTrial(ctx context.Context, jobID, launchID string) (trial *v1.Trial, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) error {
		response, err := c.Trainer.LookupTrial(ctx, &v1.LookupTrialRequest{JobId: jobID, LaunchId: launchID})
		if err != nil {
			return err
		}
		trial = response.GetTrial()
		return checkTrial("LookupTrial", trial, jobID, launchID, 0)
	})
	return trial, err
}

// ImportTrial records a trial, or the end of one, that could not be reported while it ran. The launch id makes it safe to
// retry; the job must be registered. A trial with a measurement without a metric is not sent.
func (c *Client) ImportTrial(ctx context.Context, request *v1.ImportTrialRequest) (response *v1.ImportTrialResponse, err error) {
	for place, measured := range request.Measurements {
		if measured.Metric == nil {
			return nil, missingMetric("ERROR_REASON_INVALID_REQUEST", fmt.Sprintf("measurements[%d].metric", place))
		}
	}
	err = c.Retrying(ctx, func(ctx context.Context) (err error) {
		if response, err = c.Trainer.ImportTrial(ctx, request); err != nil {
			return err
		}
		return checkTrial("ImportTrial", response.GetTrial(), request.JobId, request.LaunchId, 0)
	})
	return response, err
}

// GetJob returns one job, and what it knows about its batch sizes.
func (c *Client) GetJob(ctx context.Context, jobID string) (response *v1.GetJobResponse, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) (err error) {
		response, err = c.Reader.GetJob(ctx, &v1.GetJobRequest{JobId: jobID})
		return err
	})
	return response, err
}
