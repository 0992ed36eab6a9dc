package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "wattwise/v1"
)

const (
	longestWait = 10 * time.Second
	askEvery    = 50 * time.Millisecond
)

// step makes one call of a table.
type step func(*replay, context.Context, fields) (proto.Message, error)

var steps = map[string]step{
	"next":      (*replay).next,
	"report":    (*replay).report,
	"heartbeat": (*replay).heartbeat,
	"end":       (*replay).end,
	"register":  (*replay).register,
	"get":       (*replay).get,
	"job":       (*replay).getJob,
	"delete":    (*replay).delete,
	"invent":    (*replay).invent,
	"open":      (*replay).open,
	"send":      (*replay).send,
	"expect":    (*replay).expect,
	"close":     (*replay).close,
}

func (r *replay) next(ctx context.Context, given fields) (proto.Message, error) {
	if err := only(given, "trial", "request_id", "job_id", "resume"); err != nil {
		return nil, err
	}
	ask := r.client.NextBatchSize
	if given["resume"] == true {
		ask = r.client.ResumeTrial
	}
	answer, err := ask(ctx, text(given, "job_id", r.spec.GetJobId()), text(given, "request_id", ""))
	if err != nil {
		return nil, err
	}
	if answer.Reason == "" {
		return nil, errors.New("no reason is given")
	}
	r.trials[text(given, "trial", "")] = answer.Trial.Id
	return answer.Trial, nil
}

func (r *replay) report(ctx context.Context, given fields) (proto.Message, error) {
	result, err := r.result(given)
	if err != nil {
		return nil, err
	}
	return r.client.ReportResult(ctx, result)
}

// result is a measurement; the tables have shorter names for some of its fields.
func (r *replay) result(given fields) (*v1.TrainingResult, error) {
	trial, err := r.trial(given)
	if err != nil {
		return nil, err
	}
	long := map[string]string{"epoch": "current_epoch", "cost": "energy_joules", "time": "time_seconds"}
	named := fields{}
	for name, value := range given {
		if long[name] != "" {
			name = long[name]
		}
		if name != "trial" {
			named[name] = value
		}
	}
	result := &v1.TrainingResult{Trial: trial, TimeSeconds: 1}
	return result, fill(result, named)
}

func (r *replay) heartbeat(ctx context.Context, given fields) (proto.Message, error) {
	trial, err := r.trial(given, "trial")
	if err != nil {
		return nil, err
	}
	return r.client.Heartbeat(ctx, trial)
}

func (r *replay) end(ctx context.Context, given fields) (proto.Message, error) {
	trial, err := r.trial(given, "trial", "reason")
	if err != nil {
		return nil, err
	}
	reason, ok := v1.EndReason_value[text(given, "reason", "")]
	if !ok {
		return nil, fmt.Errorf("%v is no EndReason", given["reason"])
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

func (r *replay) get(ctx context.Context, given fields) (proto.Message, error) {
	trial, err := r.trial(given, "trial")
	if err != nil {
		return nil, err
	}
	var answer *v1.GetTrialResponse
	err = r.client.Retrying(ctx, func(ctx context.Context) (err error) {
		answer, err = r.client.Admin.GetTrial(ctx, &v1.GetTrialRequest{Trial: trial})
		return err
	})
	return answer.GetTrial(), err
}

func (r *replay) getJob(ctx context.Context, given fields) (proto.Message, error) {
	if err := only(given, "job_id"); err != nil {
		return nil, err
	}
	return r.client.GetJob(ctx, text(given, "job_id", r.spec.GetJobId()))
}

func (r *replay) delete(ctx context.Context, given fields) (proto.Message, error) {
	if err := only(given); err != nil {
		return nil, err
	}
	var answer *v1.DeleteJobResponse
	err := r.client.Retrying(ctx, func(ctx context.Context) (err error) {
		answer, err = r.client.Admin.DeleteJob(ctx, &v1.DeleteJobRequest{JobId: r.spec.GetJobId()})
		return err
	})
	return answer.GetJob(), err
}

func (r *replay) invent(_ context.Context, given fields) (proto.Message, error) {
	like, ok := r.trials[text(given, "like", "")]
	if !ok {
		return nil, fmt.Errorf("no trial is named %v", given["like"])
	}
	changed := fields{}
	for name, value := range given {
		if name != "trial" && name != "like" {
			changed[name] = value
		}
	}
	id := proto.Clone(like).(*v1.TrialId)
	r.trials[text(given, "trial", "")] = id
	return nil, fill(id, changed)
}

// until asks for a trial until it is as the table says.
func (r *replay) until(ctx context.Context, given, then fields) error {
	if err := only(given, "trial", "heartbeat"); err != nil {
		return err
	}
	for deadline := time.Now().Add(longestWait); ; time.Sleep(askEvery) {
		if name := text(given, "heartbeat", ""); name != "" {
			if _, err := r.heartbeat(ctx, fields{"trial": name}); err != nil {
				return err
			}
		}
		trial, err := r.get(ctx, fields{"trial": given["trial"]})
		if err != nil {
			return err
		}
		if err = check(trial, then); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (r *replay) trial(given fields, known ...string) (*v1.TrialId, error) {
	if len(known) > 0 {
		if err := only(given, known...); err != nil {
			return nil, err
		}
	}
	if trial := r.trials[text(given, "trial", "")]; trial != nil {
		return trial, nil
	}
	return nil, fmt.Errorf("no trial is named %v", given["trial"])
}

// only refuses what a step does not know, which must not be passed over in silence.
func only(given fields, known ...string) error {
	for name := range given {
		found := false
		for _, one := range known {
			found = found || one == name
		}
		if !found {
			return fmt.Errorf("%s is unknown to this runner", name)
		}
	}
	return nil
}

func text(given fields, name, otherwise string) string {
	if found, ok := given[name].(string); ok {
		return found
	}
	return otherwise
}

// statusName spells a status as the tables do.
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
