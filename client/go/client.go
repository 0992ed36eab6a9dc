// Package wattwise calls a Wattwise server: every call with a deadline, retries and errors that say what to do.
package wattwise

import (
	"context"
	crypto "crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	v1 "wattwise/v1"
)

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 3 * time.Second
)

// Client is a connection to a server, which opens on first use. Its methods may be called from any goroutine.
type Client struct {
	// Timeout is what one call may take with all its retries; change it before the first call only.
	Timeout time.Duration
	// Trainer and Admin are the stubs, for calls that have no method here; pass them a context of Outgoing.
	Trainer v1.BatchSizeOptimizerClient
	Admin   v1.JobAdminClient

	connection *grpc.ClientConn
	token      string
}

// NewClient prepares a connection to a server such as "localhost:50051"; nothing is sent before the first call.
func NewClient(address string, given Credentials) (*Client, error) {
	transport, err := given.dialOption(address)
	if err != nil {
		return nil, err
	}
	reconnect := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.5, MaxDelay: longestPause},
		MinConnectTimeout: 5 * time.Second,
	}
	// A server that vanished without a word is noticed within 40 seconds.
	alive := keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}
	connection, err := grpc.Dial(address, transport, grpc.WithConnectParams(reconnect), grpc.WithKeepaliveParams(alive))
	if err != nil {
		return nil, err
	}
	return &Client{
		Timeout:    30 * time.Second,
		Trainer:    v1.NewBatchSizeOptimizerClient(connection),
		Admin:      v1.NewJobAdminClient(connection),
		connection: connection,
		token:      given.Token,
	}, nil
}

// Close closes the connection; running calls fail.
func (c *Client) Close() error {
	return c.connection.Close()
}

// NewRequestID makes 128 random bits by which the server knows a call that is repeated.
func NewRequestID() string {
	return hex.EncodeToString(random(16))
}

func random(bytes int) []byte {
	bits := make([]byte, bytes)
	if _, err := crypto.Read(bits); err != nil {
		panic(err)
	}
	return bits
}

// jittered is between half of a pause and the whole, so that trainers that lost one server together do not come back
// together. (Before Go 1.20 math/rand is the same in every process.)
func jittered(pause time.Duration) time.Duration {
	return pause/2 + time.Duration(binary.BigEndian.Uint64(random(8))%uint64(pause/2+1))
}

// Outgoing adds what every call carries: its name in the server's log, and the token.
func (c *Client) Outgoing(ctx context.Context) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", NewRequestID())
	if c.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	}
	return ctx
}

// Retrying makes a call until it succeeds, a retry does not help, or the timeout is over.
func (c *Client) Retrying(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.Outgoing(ctx), c.Timeout)
	defer cancel()
	for pause := firstPause; ; pause *= 2 {
		err := FromStatus(call(ctx))
		refused, ok := err.(*Error)
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

// RegisterJob creates the job, or confirms that the one under its id has the identical configuration. A spec without
// an id is given one here, so that a retry asks for the same job again.
func (c *Client) RegisterJob(ctx context.Context, spec *v1.JobSpec) (answer *v1.RegisterJobResponse, err error) {
	if spec.JobId == nil {
		id := spec.JobIdPrefix + "-" + NewRequestID()[:8]
		spec.JobId = &id
	}
	err = c.Retrying(ctx, func(ctx context.Context) (err error) {
		answer, err = c.Trainer.RegisterJob(ctx, &v1.RegisterJobRequest{Job: spec})
		return err
	})
	return answer, err
}

// NextBatchSize dispatches the next trial. The request id is made once per launch: with the same one the answer is
// the same trial. Empty makes one for this call and its retries.
func (c *Client) NextBatchSize(ctx context.Context, jobID, requestID string) (answer *v1.GetNextBatchSizeResponse, err error) {
	if requestID == "" {
		requestID = NewRequestID()
	}
	return c.next(ctx, &v1.GetNextBatchSizeRequest{JobId: jobID, RequestId: requestID})
}

// ResumeTrial is for a launch that goes on from a checkpoint: the trial of the request id that it began with is taken
// back if it was preempted or lost meanwhile.
func (c *Client) ResumeTrial(ctx context.Context, jobID, requestID string) (answer *v1.GetNextBatchSizeResponse, err error) {
	return c.next(ctx, &v1.GetNextBatchSizeRequest{JobId: jobID, RequestId: requestID, Resume: true})
}

func (c *Client) next(ctx context.Context, request *v1.GetNextBatchSizeRequest) (answer *v1.GetNextBatchSizeResponse, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) (err error) {
		answer, err = c.Trainer.GetNextBatchSize(ctx, request)
		return err
	})
	return answer, err
}

// ReportResult reports one epoch's cumulative measurement.
func (c *Client) ReportResult(ctx context.Context, result *v1.TrainingResult) (decision *v1.Decision, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) error {
		answer, err := c.Trainer.ReportResult(ctx, &v1.ReportResultRequest{Result: result})
		decision = answer.GetDecision()
		return err
	})
	return decision, err
}

// Heartbeat renews a trial's lease and tells whether to go on.
func (c *Client) Heartbeat(ctx context.Context, trial *v1.TrialId) (decision *v1.Decision, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) error {
		answer, err := c.Trainer.Heartbeat(ctx, &v1.HeartbeatRequest{Trial: trial})
		decision = answer.GetDecision()
		return err
	})
	return decision, err
}

// EndTrial says that the trainer is gone; a trial that is decided is left as it is.
func (c *Client) EndTrial(ctx context.Context, trial *v1.TrialId, reason v1.EndReason) (ended *v1.Trial, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) error {
		answer, err := c.Trainer.EndTrial(ctx, &v1.EndTrialRequest{Trial: trial, Reason: reason})
		ended = answer.GetTrial()
		return err
	})
	return ended, err
}

// GetJob is one job as it stands.
func (c *Client) GetJob(ctx context.Context, jobID string) (job *v1.Job, err error) {
	err = c.Retrying(ctx, func(ctx context.Context) error {
		answer, err := c.Admin.GetJob(ctx, &v1.GetJobRequest{JobId: jobID})
		job = answer.GetJob()
		return err
	})
	return job, err
}
