package wattwise

import (
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func refusal(t *testing.T, code codes.Code, reason string, retryable string) error {
	t.Helper()
	info := &errdetails.ErrorInfo{
		Domain: domain, Reason: reason, Metadata: map[string]string{"retryable": retryable, "call_id": "c1"},
	}
	fault := &errdetails.BadRequest_FieldViolation{Field: "later_field", Description: "is wrong"}
	faults := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{fault}}
	detailed, err := status.New(code, "no").WithDetails(info, faults)
	if err != nil {
		t.Fatal(err)
	}
	return FromStatus(detailed.Err())
}

func TestErrorsWithReasonsOfLaterServers(t *testing.T) {
	for code, away := range map[codes.Code]bool{
		codes.InvalidArgument: false, codes.NotFound: false, codes.AlreadyExists: false, codes.FailedPrecondition: false,
		codes.Unavailable: true, codes.DeadlineExceeded: true, codes.Internal: true, codes.ResourceExhausted: true,
		codes.Unauthenticated: true, codes.PermissionDenied: true, codes.Unimplemented: true,
	} {
		for retryable, wanted := range map[string]bool{"true": true, "false": false} {
			err := refusal(t, code, "ERROR_REASON_LATER", retryable)
			failed := err.(*Error)
			if ServerAway(err) != away || failed.Retryable() != wanted {
				t.Errorf("%v: away is %v, retryable is %v", code, ServerAway(err), failed.Retryable())
			}
			if failed.Reason != "ERROR_REASON_LATER" || failed.Metadata["call_id"] != "c1" || len(failed.Violations) != 1 {
				t.Errorf("%v: %+v", code, failed)
			}
		}
		denial := code == codes.Unauthenticated || code == codes.PermissionDenied
		if err := refusal(t, code, "ERROR_REASON_LATER", "false"); denied(err) != denial {
			t.Errorf("%v: denied is %v", code, denied(err))
		}
	}
}

func TestErrorsWithoutReasonAreThoseOfAnotherServer(t *testing.T) {
	if err := FromStatus(status.Error(codes.InvalidArgument, "no")); !ServerAway(err) {
		t.Error(err)
	}
}

func TestKnownReasons(t *testing.T) {
	for reason, found := range map[string]struct {
		code codes.Code
		away bool
	}{
		"ERROR_REASON_NOT_POSSIBLE_NOW":    {codes.FailedPrecondition, false},
		"ERROR_REASON_NO_BATCH_SIZE_LEFT":  {codes.FailedPrecondition, false},
		"ERROR_REASON_JOB_DIFFERS":         {codes.AlreadyExists, false},
		"ERROR_REASON_INVALID_RESULT":      {codes.InvalidArgument, false},
		"ERROR_REASON_TRIAL_NOT_FOUND":     {codes.NotFound, false},
		"ERROR_REASON_TOO_MANY_JOBS":       {codes.ResourceExhausted, true},
		"ERROR_REASON_STORAGE_UNAVAILABLE": {codes.Unavailable, true},
		"ERROR_REASON_INTERNAL":            {codes.Internal, true},
		"ERROR_REASON_UNAUTHENTICATED":     {codes.Unauthenticated, true},
	} {
		if err := refusal(t, found.code, reason, "false"); ServerAway(err) != found.away {
			t.Errorf("%s: away is %v", reason, ServerAway(err))
		}
	}
}
