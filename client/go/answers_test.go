package wattwise

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "wattwise/v1"
)

const hostile = "\x1b[2J"

func TestTextsOfTrialsAndDecisions(t *testing.T) {
	warnings := func() []*v1.TrialWarning {
		var many []*v1.TrialWarning
		for number := 0; number < 1000; number++ {
			many = append(many, &v1.TrialWarning{Field: hostile, Message: hostile})
		}
		return many
	}
	trial := &v1.Trial{
		Id:              &v1.TrialId{JobId: "job", LaunchId: "l", TrialNumber: 1},
		BatchSize:       16,
		Reason:          hostile,
		DecisionMessage: proto.String(hostile),
		Warnings:        warnings(),
	}
	decision := &v1.Decision{Message: hostile, Warnings: warnings()}
	if err := checkTrial("GetNextBatchSize", trial, "job", "", 0); err != nil {
		t.Fatal(err)
	}
	if err := checkDecision("ReportResult", decision); err != nil {
		t.Fatal(err)
	}
	texts := []string{trial.Reason, trial.GetDecisionMessage(), decision.Message}
	for _, found := range [][]*v1.TrialWarning{trial.Warnings, decision.Warnings} {
		if len(found) != mostWarnings {
			t.Errorf("%d warnings are kept", len(found))
		}
		for _, warning := range found {
			texts = append(texts, warning.Field, warning.Message)
		}
	}
	for _, text := range texts {
		if strings.Contains(text, "\x1b") {
			t.Errorf("%q has a control character", text)
		}
	}
}

func TestListsOfRegisteredJobs(t *testing.T) {
	sent := &v1.JobSpec{JobId: "job", BatchSizes: []int32{16, 32}}
	for _, found := range []struct {
		sizes []int32
		same  bool
	}{
		{[]int32{32, 16}, true},
		{nil, false},
		{[]int32{16}, false},
	} {
		spec := &v1.JobSpec{JobId: "job", BatchSizes: found.sizes}
		err := checkRegistered(&v1.RegisterJobResponse{Job: &v1.Job{Spec: spec}}, sent)
		if (err == nil) != found.same {
			t.Errorf("%v: %v", found, err)
		}
	}
}

func TestLeasesOfRegisteredJobs(t *testing.T) {
	for lease, valid := range map[float64]bool{
		0: true, 1: true, 3e9: true, -1: false, 0.1: false, math.Inf(1): false, math.NaN(): false,
	} {
		spec := &v1.JobSpec{JobId: "job", TrialLeaseSeconds: proto.Float64(lease)}
		err := checkRegistered(&v1.RegisterJobResponse{Job: &v1.Job{Spec: spec}}, &v1.JobSpec{JobId: "job"})
		if (err == nil) != valid {
			t.Errorf("%g: %v", lease, err)
		}
	}
}
