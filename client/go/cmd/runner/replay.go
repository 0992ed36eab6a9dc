package main

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"wattwise"
	v1 "wattwise/v1"
)

// replay is one scenario against a server.
type replay struct {
	client *wattwise.Client
	table  scenario
	jobID  string
	spec   *v1.JobSpec
	trials map[string]*v1.TrialId
}

// step makes one call of a table.
type step func(*replay, context.Context, fields) (proto.Message, error)

var steps = map[string]step{
	"next":      (*replay).next,
	"report":    (*replay).report,
	"heartbeat": (*replay).heartbeat,
	"end":       (*replay).end,
	"register":  (*replay).register,
}

func (r *replay) run(ctx context.Context) error {
	spec, err := r.job(nil)
	if err != nil {
		return err
	}
	r.spec, r.trials = spec, map[string]*v1.TrialId{}
	if _, err := r.client.RegisterJob(ctx, spec); err != nil {
		return err
	}
	for i, line := range r.table.Walk {
		if err := r.follow(ctx, i+1, line); err != nil {
			return fmt.Errorf("line %d of the walk: %w", i+1, err)
		}
	}
	for i, given := range r.table.Steps {
		if err := r.take(ctx, given); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	job, err := r.client.GetJob(ctx, r.jobID)
	if err != nil {
		return err
	}
	if err := check(job, r.table.JobThen); err != nil {
		return fmt.Errorf("the job's %w", err)
	}
	return nil
}

// job is the scenario's, with some fields changed.
func (r *replay) job(changed fields) (*v1.JobSpec, error) {
	eta, target, epochs, seed := 1.0, 0.9, int32(10), int64(1)
	spec := &v1.JobSpec{
		JobId: &r.jobID, JobIdPrefix: "scenario", BatchSizes: []int32{8, 16, 32, 64}, DefaultBatchSize: 16,
		EtaKnob: &eta, TargetMetric: &target, MaxEpochs: &epochs, MabSeed: &seed,
		Gpu: &v1.GpuConfig{MaxPowerWatts: 100, NumberOfGpus: 1, GpuModel: "Test GPU"},
	}
	if err := fill(spec, r.table.Job); err != nil {
		return nil, err
	}
	return spec, fill(spec, changed)
}

func (r *replay) follow(ctx context.Context, number int, line walked) error {
	answer, err := r.client.NextBatchSize(ctx, r.jobID, "")
	if err != nil {
		return err
	}
	id := answer.Trial.Id
	if int(id.TrialNumber) != number || int(id.BatchSize) != line.batchSize {
		return fmt.Errorf("is trial %d with batch size %d, not %d", id.TrialNumber, id.BatchSize, line.batchSize)
	}
	result := &v1.TrainingResult{Trial: id, TimeSeconds: 1, EnergyJoules: line.cost, Metric: 0.95, CurrentEpoch: 1}
	if !line.converged {
		result.Metric, result.CurrentEpoch = 0.1, r.spec.GetMaxEpochs()
	}
	decision, err := r.client.ReportResult(ctx, result)
	if err != nil {
		return err
	}
	return check(decision, fields{"stop_train": true, "converged": line.converged})
}

// take makes the call of a step and compares what it answers.
func (r *replay) take(ctx context.Context, given fields) error {
	var name string
	for key := range given {
		switch {
		case key == "then" || key == "error":
		case name != "" || steps[key] == nil:
			return fmt.Errorf("%s is no step that this runner knows", key)
		default:
			name = key
		}
	}
	arguments, _ := given[name].(fields)
	answer, err := steps[name](r, ctx, arguments)
	if reason, refused := given["error"].(string); refused {
		if found := wattwise.ReasonOf(err); found != reason {
			return fmt.Errorf("%s was answered by %q (%v), not %s", name, found, err, reason)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	then, _ := given["then"].(fields)
	if err := check(answer, then); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (r *replay) next(ctx context.Context, given fields) (proto.Message, error) {
	name, _ := given["trial"].(string)
	requestID, _ := given["request_id"].(string)
	answer, err := r.client.NextBatchSize(ctx, r.jobID, requestID)
	if err != nil {
		return nil, err
	}
	if answer.Reason == "" {
		return nil, fmt.Errorf("no reason is given")
	}
	r.trials[name] = answer.Trial.Id
	return answer.Trial, nil
}

func (r *replay) report(ctx context.Context, given fields) (proto.Message, error) {
	result, err := r.result(given)
	if err != nil {
		return nil, err
	}
	return r.client.ReportResult(ctx, result)
}

// result is a measurement; the tables have shorter names for some fields.
func (r *replay) result(given fields) (*v1.TrainingResult, error) {
	trial, err := r.trial(given)
	if err != nil {
		return nil, err
	}
	named := fields{}
	for name, value := range given {
		if name == "trial" {
			continue
		}
		if long, ok := map[string]string{"epoch": "current_epoch", "cost": "energy_joules", "time": "time_seconds"}[name]; ok {
			name = long
		}
		named[name] = value
	}
	result := &v1.TrainingResult{Trial: trial, TimeSeconds: 1}
	return result, fill(result, named)
}

func (r *replay) heartbeat(ctx context.Context, given fields) (proto.Message, error) {
	trial, err := r.trial(given)
	if err != nil {
		return nil, err
	}
	return r.client.Heartbeat(ctx, trial)
}

func (r *replay) end(ctx context.Context, given fields) (proto.Message, error) {
	trial, err := r.trial(given)
	if err != nil {
		return nil, err
	}
	name, _ := given["reason"].(string)
	reason, ok := v1.EndReason_value[name]
	if !ok {
		return nil, fmt.Errorf("%q is no EndReason", name)
	}
	return r.client.EndTrial(ctx, trial, v1.EndReason(reason))
}

func (r *replay) register(ctx context.Context, given fields) (proto.Message, error) {
	spec, err := r.job(given)
	if err != nil {
		return nil, err
	}
	return r.client.RegisterJob(ctx, spec)
}

func (r *replay) trial(given fields) (*v1.TrialId, error) {
	name, _ := given["trial"].(string)
	if trial := r.trials[name]; trial != nil {
		return trial, nil
	}
	return nil, fmt.Errorf("no trial is named %q", name)
}
