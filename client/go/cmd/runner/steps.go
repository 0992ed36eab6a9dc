package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"wattwise"
	v1 "wattwise/v1"
)

const (
	stepTimeout = 10 * time.Second
	pollPause   = 50 * time.Millisecond
)

// steps makes the calls of one scenario. It has the job, and the trials and streams that earlier steps have named.
type steps struct {
	client  *wattwise.Client
	spec    *v1.JobSpec
	trials  map[string]*v1.TrialId
	streams map[string]*stream
}

// step makes one call and returns its answer; nil if there is nothing to compare.
type step func(*steps, context.Context, fields) (proto.Message, error)

var stepsByName = map[string]step{
	"next":      (*steps).next,
	"report":    (*steps).report,
	"heartbeat": (*steps).heartbeat,
	"end":       (*steps).end,
	"register":  (*steps).register,
	"get":       (*steps).get,
	"job":       (*steps).getJob,
	"details":   (*steps).getDetails,
	"delete":    (*steps).delete,
	"invent":    (*steps).invent,
	"open":      (*steps).open,
	"send":      (*steps).send,
	"expect":    (*steps).expect,
	"close":     (*steps).close,

	"lookup":         (*steps).lookup,
	"import":         (*steps).importTrial,
	"reset":          (*steps).reset,
	"exclude":        (*steps).exclude,
	"ban":            (*steps).ban,
	"pin":            (*steps).pin,
	"readmit":        (*steps).readmit,
	"pause":          (*steps).pause,
	"baseline":       (*steps).baseline,
	"baseline_every": (*steps).baselineEvery,
	"set_policy":     (*steps).setPolicy,
}

// newSteps has the job of a scenario. The suffix makes the job's id unique.
func newSteps(client *wattwise.Client, job fields, suffix string) (*steps, error) {
	eta, epochs, policy := 1.0, int32(10), &v1.PruningGtsSpec{Seed: proto.Int64(1)}
	spec := &v1.JobSpec{
		JobIdPrefix: proto.String("scenario"), BatchSizes: []int32{8, 16, 32, 64}, DefaultBatchSize: 16,
		Target:  &v1.Target{Value: proto.Float64(0.9), Direction: v1.Direction_DIRECTION_HIGHER_IS_BETTER},
		EtaKnob: &eta, MaxEpochs: &epochs, Policy: &v1.PolicySpec{Policy: &v1.PolicySpec_PruningGts{PruningGts: policy}},
		Gpus: []*v1.GpuGroup{{GpuModel: "Test GPU", Count: 1, MaxPowerWattsPerGpu: 100}},
	}
	if err := fill(spec, job); err != nil {
		return nil, err
	}
	if spec.JobId == "" {
		spec.JobId = spec.GetJobIdPrefix() + "-" + suffix
	}
	return &steps{client: client, spec: spec, trials: map[string]*v1.TrialId{}, streams: map[string]*stream{}}, nil
}

// known reports whether there is a step of this name.
func known(name string) bool {
	return name == "until" || stepsByName[name] != nil
}

// take makes a step's call. `until` repeats its call until the answer is as `then` says.
func (s *steps) take(ctx context.Context, name string, args, then fields) (proto.Message, error) {
	if name == "until" {
		return s.until(ctx, args, then)
	}
	return stepsByName[name](s, ctx, args)
}

func (s *steps) next(ctx context.Context, args fields) (proto.Message, error) {
	if err := checkKeys(args, "trial", "launch_id", "job_id", "resume"); err != nil {
		return nil, err
	}
	call := s.client.GetNextBatchSize
	if args["resume"] == true {
		call = s.client.ResumeTrial
	}
	response, err := call(ctx, text(args, "job_id", s.spec.GetJobId()), text(args, "launch_id", wattwise.NewID()))
	if err != nil {
		return nil, err
	}
	if response.Trial.Reason == "" && response.Trial.Origin != v1.TrialOrigin_TRIAL_ORIGIN_IMPORTED {
		return nil, errors.New("has no reason")
	}
	s.trials[text(args, "trial", "")] = response.Trial.Id
	return response.Trial, nil
}

func (s *steps) report(ctx context.Context, args fields) (proto.Message, error) {
	result, err := s.result(args)
	if err != nil {
		return nil, err
	}
	return s.client.ReportResult(ctx, result)
}

// result converts the arguments of a report; the tables have shorter names for some of its fields.
func (s *steps) result(args fields) (*v1.TrainingResult, error) {
	trial, err := s.trial(args)
	if err != nil {
		return nil, err
	}
	long := map[string]string{"cost": "energy_joules", "time": "time_seconds"}
	outer, named := fields{}, fields{}
	for name, value := range args {
		if long[name] != "" {
			name = long[name]
		}
		switch name {
		case "trial":
		case "monitor":
			outer[name] = value
		default:
			named[name] = value
		}
	}
	measurement := &v1.Measurement{TimeSeconds: proto.Float64(1)}
	if err := fill(measurement, named); err != nil {
		return nil, err
	}
	result := &v1.TrainingResult{Trial: trial, Measurement: measurement}
	return result, fill(result, outer)
}

func (s *steps) heartbeat(ctx context.Context, args fields) (proto.Message, error) {
	trial, err := s.trial(args, "trial")
	if err != nil {
		return nil, err
	}
	return s.client.Heartbeat(ctx, trial)
}

func (s *steps) end(ctx context.Context, args fields) (proto.Message, error) {
	trial, err := s.trial(args, "trial", "reason")
	if err != nil {
		return nil, err
	}
	reason, ok := v1.EndReason_value[text(args, "reason", "")]
	if !ok {
		return nil, fmt.Errorf("%v is not a value of EndReason", args["reason"])
	}
	return s.client.EndTrial(ctx, trial, v1.EndReason(reason))
}

func (s *steps) register(ctx context.Context, args fields) (proto.Message, error) {
	spec := proto.Clone(s.spec).(*v1.JobSpec)
	if err := fill(spec, args); err != nil {
		return nil, err
	}
	return s.client.RegisterJob(ctx, spec)
}

func (s *steps) get(ctx context.Context, args fields) (proto.Message, error) {
	trial, err := s.trial(args, "trial")
	if err != nil {
		return nil, err
	}
	var response *v1.GetTrialResponse
	err = s.client.Retrying(ctx, func(ctx context.Context) (err error) {
		response, err = s.client.Reader.GetTrial(ctx, &v1.GetTrialRequest{Trial: trial})
		return err
	})
	return response.GetTrial(), err
}

func (s *steps) lookup(ctx context.Context, args fields) (proto.Message, error) {
	if err := checkKeys(args, "trial", "launch_id", "job_id"); err != nil {
		return nil, err
	}
	trial, err := s.client.LookupTrial(ctx, text(args, "job_id", s.spec.GetJobId()), text(args, "launch_id", ""))
	if err != nil {
		return nil, err
	}
	s.trials[text(args, "trial", "")] = trial.Id
	return trial, nil
}

func (s *steps) getJob(ctx context.Context, args fields) (proto.Message, error) {
	response, err := s.knownJob(ctx, args)
	return response.GetJob(), err
}

func (s *steps) getDetails(ctx context.Context, args fields) (proto.Message, error) {
	response, err := s.knownJob(ctx, args)
	return response.GetDetails(), err
}

func (s *steps) knownJob(ctx context.Context, args fields) (*v1.GetJobResponse, error) {
	if err := checkKeys(args, "job_id"); err != nil {
		return nil, err
	}
	return s.client.GetJob(ctx, text(args, "job_id", s.spec.GetJobId()))
}

func (s *steps) delete(ctx context.Context, args fields) (proto.Message, error) {
	if err := checkKeys(args); err != nil {
		return nil, err
	}
	known, err := s.client.GetJob(ctx, s.spec.GetJobId())
	if err != nil {
		return nil, err
	}
	request := &v1.DeleteJobRequest{JobId: s.spec.GetJobId(), CreateTime: known.GetJob().GetCreateTime()}
	var response *v1.DeleteJobResponse
	err = s.client.Retrying(ctx, func(ctx context.Context) (err error) {
		response, err = s.client.Control.DeleteJob(ctx, request)
		return err
	})
	return response.GetJob(), err
}

func (s *steps) invent(_ context.Context, args fields) (proto.Message, error) {
	like, ok := s.trials[text(args, "like", "")]
	if !ok {
		return nil, fmt.Errorf("unknown trial %v", args["like"])
	}
	changed := fields{}
	for name, value := range args {
		if name != "trial" && name != "like" {
			changed[name] = value
		}
	}
	id := proto.Clone(like).(*v1.TrialId)
	s.trials[text(args, "trial", "")] = id
	return nil, fill(id, changed)
}

// until polls a trial until it is as the table says.
func (s *steps) until(ctx context.Context, args, then fields) (proto.Message, error) {
	if err := checkKeys(args, "trial", "heartbeat"); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(stepTimeout); ; time.Sleep(pollPause) {
		if name := text(args, "heartbeat", ""); name != "" {
			if _, err := s.heartbeat(ctx, fields{"trial": name}); err != nil {
				return nil, err
			}
		}
		trial, err := s.get(ctx, fields{"trial": args["trial"]})
		if err != nil {
			return nil, err
		}
		if err = check(trial, then); err == nil || time.Now().After(deadline) {
			return trial, err
		}
	}
}

func (s *steps) trial(args fields, known ...string) (*v1.TrialId, error) {
	if len(known) > 0 {
		if err := checkKeys(args, known...); err != nil {
			return nil, err
		}
	}
	if trial := s.trials[text(args, "trial", "")]; trial != nil {
		return trial, nil
	}
	return nil, fmt.Errorf("unknown trial %v", args["trial"])
}
