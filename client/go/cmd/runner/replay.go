package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"

	"wattwise"
	v1 "wattwise/v1"
)

// replay is one scenario against a server.
type replay struct {
	client  *wattwise.Client
	table   scenario
	suffix  string
	spec    *v1.JobSpec
	trials  map[string]*v1.TrialId
	streams map[string]*stream
}

func (r *replay) run(ctx context.Context) error {
	if err := only(r.table.Others); err != nil {
		return err
	}
	spec, err := r.job(nil)
	if err != nil {
		return err
	}
	r.spec, r.trials, r.streams = spec, map[string]*v1.TrialId{}, map[string]*stream{}
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
			return fmt.Errorf("step %d, %w", i+1, err)
		}
	}
	if r.table.JobThen == nil {
		return nil
	}
	job, err := r.client.GetJob(ctx, r.spec.GetJobId())
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
		JobIdPrefix: "scenario", BatchSizes: []int32{8, 16, 32, 64}, DefaultBatchSize: 16,
		EtaKnob: &eta, TargetMetric: &target, MaxEpochs: &epochs, MabSeed: &seed,
		Gpu: &v1.GpuConfig{MaxPowerWatts: 100, NumberOfGpus: 1, GpuModel: "Test GPU"},
	}
	if err := fill(spec, r.table.Job); err != nil {
		return nil, err
	}
	if spec.JobId == nil {
		spec.JobId = proto.String(spec.JobIdPrefix + "-" + r.suffix)
	}
	return spec, fill(spec, changed)
}

func (r *replay) follow(ctx context.Context, number int, line walked) error {
	answer, err := r.client.NextBatchSize(ctx, r.spec.GetJobId(), "")
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
	name, then, refusal, err := parts(given)
	if err != nil {
		return err
	}
	arguments, ok := given[name].(fields)
	if !ok {
		return fmt.Errorf("%s: %v has no fields", name, given[name])
	}
	if name == "until" {
		err = r.until(ctx, arguments, then)
	} else {
		err = r.call(ctx, name, arguments, then, refusal)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (r *replay) call(ctx context.Context, name string, arguments, then, refusal fields) error {
	answer, err := steps[name](r, ctx, arguments)
	switch {
	case refusal != nil:
		return checkRefusal(err, refusal)
	case err != nil || then == nil:
		return err
	case answer == nil:
		return errors.New("answers nothing that could be compared")
	}
	return check(answer, then)
}

// parts takes a step apart: its name, what it must answer, and how it must be refused.
func parts(given fields) (name string, then, refusal fields, err error) {
	for key, value := range given {
		switch key {
		case "then":
			then, _ = value.(fields)
		case "error", "status", "fields", "metadata":
			if refusal == nil {
				refusal = fields{}
			}
			refusal[key] = value
		default:
			if name != "" || (steps[key] == nil && key != "until") {
				return "", nil, nil, fmt.Errorf("%s: no step that this runner knows", key)
			}
			name = key
		}
	}
	if name == "" || given["then"] != nil && then == nil {
		return "", nil, nil, fmt.Errorf("%v: no step that this runner knows", given)
	}
	return name, then, refusal, nil
}

// checkRefusal compares how a call was refused.
func checkRefusal(err error, expected fields) error {
	var refused *wattwise.Error
	if !errors.As(err, &refused) {
		return fmt.Errorf("was not refused with %v: %v", expected["error"], err)
	}
	if refused.Reason != expected["error"] {
		return fmt.Errorf("was refused with %q, not %v: %w", refused.Reason, expected["error"], err)
	}
	if status := statusName(refused.Code); expected["status"] != nil && status != expected["status"] {
		return fmt.Errorf("was refused with status %s, not %v", status, expected["status"])
	}
	if expected["fields"] != nil {
		if err := checkViolations(refused, expected["fields"]); err != nil {
			return err
		}
	}
	metadata, _ := expected["metadata"].(fields)
	for key, part := range metadata {
		value, there := refused.Metadata[key]
		if text, _ := part.(string); there == (part == nil) || !strings.Contains(value, text) {
			return fmt.Errorf("was refused with metadata[%s] %q, not %v", key, value, part)
		}
	}
	return nil
}

func checkViolations(refused *wattwise.Error, expected any) error {
	var found, wanted []string
	for _, violation := range refused.Violations {
		found = append(found, violation.Field)
	}
	items, _ := expected.([]any)
	for _, item := range items {
		wanted = append(wanted, fmt.Sprint(item))
	}
	sort.Strings(found)
	sort.Strings(wanted)
	if strings.Join(found, " ") != strings.Join(wanted, " ") {
		return fmt.Errorf("was refused for %v, not for %v", found, wanted)
	}
	return nil
}
