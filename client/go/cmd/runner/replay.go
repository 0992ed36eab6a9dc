package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"google.golang.org/grpc/codes"

	"wattwise"
)

// replay replays a scenario; it returns the first difference.
func replay(ctx context.Context, client *wattwise.Client, scenario scenario, suffix string) error {
	if err := checkKeys(scenario.Unknown); err != nil {
		return err
	}
	steps, err := newSteps(client, scenario.Job, suffix)
	if err != nil {
		return err
	}
	if _, err := steps.register(ctx, nil); err != nil {
		return err
	}
	for i, line := range scenario.Walk {
		if err := replayLine(ctx, steps, i+1, line); err != nil {
			return fmt.Errorf("line %d, %w", i+1, err)
		}
	}
	for i, given := range scenario.Steps {
		if err := replayStep(ctx, steps, given); err != nil {
			return fmt.Errorf("step %d, %w", i+1, err)
		}
	}
	if scenario.JobThen == nil {
		return nil
	}
	job, err := steps.getJob(ctx, nil)
	if err != nil {
		return err
	}
	return check(job, scenario.JobThen)
}

func replayLine(ctx context.Context, steps *steps, number int, line walkLine) error {
	trial, err := steps.next(ctx, fields{"trial": "walk"})
	if err != nil {
		return err
	}
	if err := check(trial, fields{"trial_number": number, "batch_size": line.batchSize}); err != nil {
		return err
	}
	report := fields{"trial": "walk", "epoch": 1, "cost": line.cost, "metric": 0.95}
	if !line.converged {
		report["epoch"], report["metric"] = int(steps.spec.GetMaxEpochs()), 0.1
	}
	decision, err := steps.report(ctx, report)
	if err != nil {
		return err
	}
	return check(decision, fields{"stop_train": true, "converged": line.converged})
}

func replayStep(ctx context.Context, steps *steps, step fields) error {
	name, then, refusal, err := parts(step)
	if err != nil {
		return err
	}
	args, ok := step[name].(fields)
	if !ok {
		return fmt.Errorf("%s: %v has no fields", name, step[name])
	}
	if err := callAndCompare(ctx, steps, name, args, then, refusal); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func callAndCompare(ctx context.Context, steps *steps, name string, args, then, refusal fields) error {
	answer, err := steps.take(ctx, name, args, then)
	switch {
	case refusal != nil:
		return checkRefusal(err, refusal)
	case err != nil || then == nil:
		return err
	case answer == nil:
		return errors.New("has no answer to compare")
	}
	return check(answer, then)
}

// parts takes a step apart: its name, the expected answer, and the expected refusal.
func parts(step fields) (name string, then, refusal fields, err error) {
	for key, value := range step {
		switch key {
		case "then":
			then, _ = value.(fields)
		case "error", "status", "fields", "metadata":
			if refusal == nil {
				refusal = fields{}
			}
			refusal[key] = value
		default:
			if name != "" || !known(key) {
				return "", nil, nil, fmt.Errorf("unknown to this runner: %s", key)
			}
			name = key
		}
	}
	if name == "" || step["then"] != nil && then == nil {
		return "", nil, nil, fmt.Errorf("unknown to this runner: %v", step)
	}
	return name, then, refusal, nil
}

// checkRefusal compares an error with a step's error, status, fields and metadata.
func checkRefusal(err error, expected fields) error {
	var refused *wattwise.Error
	if !errors.As(err, &refused) {
		return fmt.Errorf("did not fail with %v: %v", expected["error"], err)
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

// statusName returns the name of a status as in the tables.
func statusName(code codes.Code) string {
	for name, one := range map[string]codes.Code{
		"CANCELLED": codes.Canceled, "INVALID_ARGUMENT": codes.InvalidArgument, "DEADLINE_EXCEEDED": codes.DeadlineExceeded,
		"NOT_FOUND": codes.NotFound, "ALREADY_EXISTS": codes.AlreadyExists, "PERMISSION_DENIED": codes.PermissionDenied,
		"RESOURCE_EXHAUSTED": codes.ResourceExhausted, "FAILED_PRECONDITION": codes.FailedPrecondition,
		"UNIMPLEMENTED": codes.Unimplemented, "INTERNAL": codes.Internal, "UNAVAILABLE": codes.Unavailable,
		"UNAUTHENTICATED": codes.Unauthenticated,
	} {
		if one == code {
			return name
		}
	}
	return code.String()
}
