// Command example is a launch of a recurring training job, with simulated epochs:
//
//	example [ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]]
//
// It trains until a model reaches its target, at most five times, also without a server. It exits with 0 if one did, and
// with 3 if none did.
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"wattwise"
	v1 "wattwise/v1"
)

func main() {
	address, pace, lease := "localhost:50051", 0.0, 300.0
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	for i, into := range []*float64{&pace, &lease} {
		if len(os.Args) > i+2 {
			if _, err := fmt.Sscan(os.Args[i+2], into); err != nil {
				log.Fatalf("%s is not a number of seconds", os.Args[i+2])
			}
		}
	}
	reached, err := launch(address, time.Duration(pace*float64(time.Second)), lease)
	if err != nil {
		log.Fatal(err)
	}
	if !reached {
		os.Exit(3)
	}
}

// defaultBatchSize is also what trains if the server cannot be reached or no batch size is left to try.
const (
	defaultBatchSize = 32
	maxTries         = 5
)

func launch(address string, pace time.Duration, lease float64) (bool, error) {
	spec := &v1.JobSpec{
		JobId: "pretend-nightly", JobIdPrefix: proto.String("pretend"), BatchSizes: []int32{16, 32, 64, 128},
		DefaultBatchSize:  defaultBatchSize,
		Target:            &v1.Target{Value: proto.Float64(0.9), Direction: v1.Direction_DIRECTION_HIGHER_IS_BETTER},
		TrialLeaseSeconds: &lease,
		Gpus:              []*v1.GpuGroup{{GpuModel: "Simulated GPU", Count: 1, MaxPowerWattsPerGpu: 300}},
	}
	credentials, err := wattwise.CredentialsFromEnv()
	if err != nil {
		return false, err
	}
	client, err := wattwise.NewClient(address, credentials)
	if err != nil {
		return false, err
	}
	defer client.Close()
	client.Timeout = 10 * time.Second
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return client.Attempts(ctx, spec, maxTries, defaultBatchSize, func(session *wattwise.TrialSession, _ int) error {
		return train(ctx, session, pace)
	})
}

// train returns once training must stop. Attempts then ends the trial: as preempted if SIGTERM, SIGHUP or Ctrl-C has cancelled ctx.
func train(ctx context.Context, session *wattwise.TrialSession, pace time.Duration) error {
	fmt.Println(session.Reason)
	session.Monitor = &v1.Monitor{Kinds: []string{"estimate"}, Quality: v1.EnergyQuality_ENERGY_QUALITY_ESTIMATED}
	seconds, joules := 0.0, 0.0
	for epoch := 1; ; epoch++ {
		select {
		case <-time.After(pace):
		case <-session.Stopped():
		case <-ctx.Done():
			return ctx.Err()
		}
		metric, epochSeconds, epochJoules := simulateEpoch(session.BatchSize(), epoch)
		seconds, joules = seconds+epochSeconds, joules+epochJoules
		decision, err := session.Report(ctx, epoch, seconds, &joules, metric)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case wattwise.ServerAway(err):
			log.Printf("training continues without the server: %v", err)
		case err != nil:
			return err
		case decision.StopTrain:
			fmt.Println(decision.Message)
			return nil
		}
	}
}

// simulateEpoch: large batches are fast and learn little, and every epoch draws 250 W.
func simulateEpoch(batchSize, epoch int) (metric, seconds, joules float64) {
	seconds = 20 + 2000/float64(batchSize)
	metric = 1 - math.Exp(-float64(epoch)*4/math.Sqrt(float64(batchSize)))
	return metric, seconds, 250 * seconds
}
