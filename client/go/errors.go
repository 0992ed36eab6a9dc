package wattwise

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const domain = "wattwise.v1"

// Error is the error of a call that was refused or could not be made.
type Error struct {
	// Code is the gRPC status.
	Code codes.Code
	// Message says what to do.
	Message string
	// Reason is the name of a v1.ErrorReason, such as "ERROR_REASON_JOB_DIFFERS"; empty if the error is not from a
	// Wattwise server. A later server may send one that this client does not know: go by Code and Retryable then.
	Reason string
	// Metadata has the keys that v1.ErrorReason documents for each reason.
	Metadata map[string]string
	// Violations are the faults of the request, or what differs, by field. Of very many, a last one without a field says how
	// many more there are.
	Violations []*errdetails.BadRequest_FieldViolation
}

func (e *Error) Error() string {
	if id := e.Metadata["call_id"]; id != "" {
		return fmt.Sprintf("%s (call %s)", e.Message, id)
	}
	return e.Message
}

// Retryable reports whether the same call may succeed later.
func (e *Error) Retryable() bool {
	if value, ok := e.Metadata["retryable"]; ok {
		return value == "true"
	}
	// An overloaded server cancels calls. A call that was cancelled by its own context is no Error.
	return e.Code == codes.Unavailable || e.Code == codes.Canceled
}

// ServerAway reports whether a call failed although the server has not refused the request itself: it could not be reached
// in time, has failed or reached a limit, does not accept the caller's token or certificate, or gave an invalid answer.
// Continue training: reports are cumulative, so the next one replaces a lost one. An error with a reason that is newer than
// this client goes by its status.
func ServerAway(err error) bool {
	var failed *Error
	// Without a reason, the status is not that of a Wattwise server.
	return errors.As(err, &failed) && (failed.Reason == "" || !refusals[failed.Code])
}

// refusals are the statuses of errors that the request itself leads to. They do not depend on the reason, because a later
// server has more reasons.
var refusals = map[codes.Code]bool{
	codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.FailedPrecondition: true,
}

// denied reports whether the token or the certificate of the caller is not accepted.
func denied(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && (refused.Code == codes.Unauthenticated || refused.Code == codes.PermissionDenied)
}

// missingMetric is the error of a measurement without a metric, which is not sent.
func missingMetric(reason, field string) error {
	fault := &errdetails.BadRequest_FieldViolation{
		Field: field, Description: "is not set; set the validation metric after the epoch, or NaN if training has diverged",
	}
	return &Error{
		Code: codes.InvalidArgument, Message: field + " " + fault.Description, Reason: reason,
		Violations: []*errdetails.BadRequest_FieldViolation{fault},
	}
}

func unavailable(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Code == codes.Unavailable
}

// ReasonOf returns the reason of an error; empty if it has none.
func ReasonOf(err error) string {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return ""
}

// FromStatus converts the error of a stub to an Error. nil and io.EOF, which ends a stream, do not change.
func FromStatus(err error) error {
	found, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	refused := &Error{Code: found.Code(), Message: shown(found.Message())}
	for _, detail := range found.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.Domain == domain {
				refused.Reason, refused.Metadata = detail.Reason, map[string]string{}
				for key, value := range detail.Metadata {
					refused.Metadata[shown(key)] = shown(value)
				}
			}
		case *errdetails.BadRequest:
			refused.Violations = detail.FieldViolations
			for _, fault := range refused.Violations {
				fault.Field, fault.Description = shown(fault.Field), shown(fault.Description)
			}
		}
	}
	return refused
}
