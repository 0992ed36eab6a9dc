// Command example is a launch of a recurring training job, with simulated epochs:
//
//	example [ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]]
//
// It exits with 0 if the model reached its target, and with 3 if the server stopped the trial before that.
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
	reached, err := train(address, time.Duration(pace*float64(time.Second)), lease)
	if err != nil {
		log.Fatal(err)
	}
	if !reached {
		os.Exit(3)
	}
}

func train(address string, pace time.Duration, lease float64) (bool, error) {
	spec := &v1.JobSpec{
		JobId: proto.String("pretend-nightly"), JobIdPrefix: "pretend", BatchSizes: []int32{16, 32, 64, 128},
		DefaultBatchSize: 32, TargetMetric: proto.Float64(0.9), TrialLeaseSeconds: &lease,
		Gpu: &v1.GpuConfig{MaxPowerWatts: 300, NumberOfGpus: 1, GpuModel: "Simulated GPU"},
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	session, err := client.Launch(ctx, spec)
	if err != nil {
		return false, err
	}
	fmt.Println(session.Reason)
	session.Monitor = &v1.Monitor{Kinds: []string{"estimate"}, Estimated: true}
	// The reason if training ends without a decision of the server. SIGTERM and Ctrl-C cancel ctx.
	reason := v1.EndReason_END_REASON_ERROR
	defer func() { session.End(reason) }()

	seconds, joules := 0.0, 0.0
	for epoch := 1; ; epoch++ {
		select {
		case <-time.After(pace):
		case <-session.Stopped():
		case <-ctx.Done():
			reason = v1.EndReason_END_REASON_PREEMPTED
			return false, ctx.Err()
		}
		metric, epochSeconds, epochJoules := simulateEpoch(session.BatchSize(), epoch)
		seconds, joules = seconds+epochSeconds, joules+epochJoules
		decision, err := session.Report(ctx, epoch, seconds, joules, metric)
		switch {
		case err != nil && ctx.Err() != nil:
			reason = v1.EndReason_END_REASON_PREEMPTED
			return false, ctx.Err()
		case wattwise.ServerAway(err):
			log.Printf("training continues without the server: %v", err)
		case err != nil:
			return false, err
		case decision.StopTrain:
			fmt.Println(decision.Message)
			reason = v1.EndReason_END_REASON_COMPLETED
			return decision.TargetReached, nil
		}
	}
}

// simulateEpoch: large batches are fast and learn little, and every epoch draws 250 W.
func simulateEpoch(batchSize, epoch int) (metric, seconds, joules float64) {
	seconds = 20 + 2000/float64(batchSize)
	metric = 1 - math.Exp(-float64(epoch)*4/math.Sqrt(float64(batchSize)))
	return metric, seconds, 250 * seconds
}
