package wattwise

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "wattwise/v1"
)

const (
	// The warnings that are shown of one trial; there are fewer reasons for them.
	mostWarnings = 20
	// In bytes; servers cut their texts to fit into the headers of an answer, which are not larger.
	longestText = 8192
	leastLease  = 1
)

// shown returns a text of the server for logs and terminals: cut if it is very long, without control characters.
func shown(text string) string {
	if len(text) > longestText {
		text = text[:longestText] + "…"
	}
	text = strings.ToValidUTF8(text, "\ufffd")
	if strings.IndexFunc(text, unprintable) < 0 {
		return text
	}
	var escaped strings.Builder
	for _, char := range text {
		if unprintable(char) {
			quoted := strconv.QuoteRune(char)
			escaped.WriteString(quoted[1 : len(quoted)-1])
		} else {
			escaped.WriteRune(char)
		}
	}
	return escaped.String()
}

func unprintable(char rune) bool {
	return !unicode.IsPrint(char)
}

// invalidAnswer is the error of an answer that is incomplete, unusable or about something else: the server is faulty, or
// another one.
func invalidAnswer(call, fault string, values ...interface{}) error {
	message := fmt.Sprintf("the server gave an invalid answer to %s: %s", call, fmt.Sprintf(fault, values...))
	return &Error{Code: codes.Internal, Message: shown(message)}
}

// checkRegistered checks that a registered job has the configuration that was sent, apart from its policy.
func checkRegistered(answer *v1.RegisterJobResponse, sent *v1.JobSpec) error {
	const call = "RegisterJob"
	spec := answer.GetJob().GetSpec()
	if spec == nil {
		return invalidAnswer(call, "it has no job")
	}
	other := ""
	sent.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		// Unset fields of the rule have their defaults in the answer.
		same := field.Name() == "policy" || field.Name() == "early_stopping"
		if !same && !proto.Equal(only(sent, field), only(spec, field)) {
			other = string(field.Name())
		}
		return other == ""
	})
	if sent.EarlyStopping.GetRule() != nil && (sent.EarlyStopping.GetOff() == nil) != (spec.EarlyStopping.GetOff() == nil) {
		other = "early_stopping"
	}
	lease := spec.GetTrialLeaseSeconds()
	switch {
	case other != "":
		return invalidAnswer(call, "its job has another %s than the job that was registered", other)
	case lease != 0 && !(lease >= leastLease && lease <= math.MaxFloat64):
		return invalidAnswer(call, "its job has the lease %g s", lease)
	case spec.MaxEpochs != nil && *spec.MaxEpochs < 1:
		return invalidAnswer(call, "its job has max_epochs %d", *spec.MaxEpochs)
	case math.IsNaN(spec.GetTarget().GetValue()):
		return invalidAnswer(call, "its job has the target NaN")
	}
	return nil
}

// only returns a job with one of the fields, as far as this client knows it: a newer server may say more. The order of batch
// sizes does not matter.
func only(spec *v1.JobSpec, field protoreflect.FieldDescriptor) *v1.JobSpec {
	one := &v1.JobSpec{}
	if spec.ProtoReflect().Has(field) {
		one.ProtoReflect().Set(field, spec.ProtoReflect().Get(field))
	}
	one.BatchSizes = append([]int32(nil), one.BatchSizes...)
	sort.Slice(one.BatchSizes, func(i, j int) bool { return one.BatchSizes[i] < one.BatchSizes[j] })
	known := &v1.JobSpec{}
	if bytes, err := proto.Marshal(one); err == nil {
		_ = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(bytes, known)
	}
	return known
}

// checkTrial checks that a trial is the one that was asked for, and shortens its texts. Without a launch id it may belong to
// any launch; the number 0 is any number.
func checkTrial(call string, trial *v1.Trial, jobID, launchID string, number int32) error {
	id := trial.GetId()
	switch {
	case id == nil:
		return invalidAnswer(call, "it has no trial")
	case id.JobId != jobID:
		return invalidAnswer(call, "its trial is of job %.100q, not %q", id.JobId, jobID)
	case id.LaunchId == "" || launchID != "" && id.LaunchId != launchID:
		return invalidAnswer(call, "its trial belongs to another launch")
	case number != 0 && id.TrialNumber != number:
		return invalidAnswer(call, "its trial has the number %d, not %d", id.TrialNumber, number)
	case trial.BatchSize <= 0 || trial.GetNewest().GetEpoch() < 0:
		return invalidAnswer(call, "its trial has the batch size %d and the epoch %d", trial.BatchSize, trial.GetNewest().GetEpoch())
	case !isSum(trial.GetNewest().GetTimeSeconds()) || !isSum(trial.GetNewest().GetEnergyJoules()):
		return invalidAnswer(call, "its trial has %g s and %g J", trial.Newest.GetTimeSeconds(), trial.Newest.GetEnergyJoules())
	}
	trial.Reason = shown(trial.Reason)
	if trial.DecisionMessage != nil {
		trial.DecisionMessage = proto.String(shown(*trial.DecisionMessage))
	}
	trial.Warnings = shortened(trial.Warnings)
	return nil
}

func isSum(value float64) bool {
	return value >= 0 && !math.IsInf(value, 1)
}

// checkDispatched checks that a job lists the batch size of its trial.
func checkDispatched(call string, trial *v1.Trial, spec *v1.JobSpec) error {
	if !contains(spec.BatchSizes, int(trial.BatchSize)) {
		return invalidAnswer(call, "its trial has the batch size %d, which is not one of %v", trial.BatchSize, spec.BatchSizes)
	}
	if trial.Id.TrialNumber < 1 {
		return invalidAnswer(call, "its trial has the number %d", trial.Id.TrialNumber)
	}
	return nil
}

// checkDecision checks that there is a decision, and shortens its texts.
func checkDecision(call string, decision *v1.Decision) error {
	if decision == nil {
		return invalidAnswer(call, "it has no decision")
	}
	decision.Message = shown(decision.Message)
	decision.Warnings = shortened(decision.Warnings)
	return nil
}

// shortened returns the warnings that are shown, with shortened texts.
func shortened(warnings []*v1.TrialWarning) []*v1.TrialWarning {
	if len(warnings) > mostWarnings {
		warnings = warnings[:mostWarnings]
	}
	for _, warning := range warnings {
		warning.Field, warning.Message = shown(warning.Field), shown(warning.Message)
	}
	return warnings
}
