package wattwise

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const domain = "wattwise.v1"

// Error is a call that was refused or could not be made.
type Error struct {
	// Code is gRPC's status.
	Code codes.Code
	// Message says what to do.
	Message string
	// Reason is a name of v1.ErrorReason, such as "ERROR_REASON_JOB_DIFFERS"; empty if no Wattwise server gave one.
	Reason string
	// Metadata is what the server added, as v1.ErrorReason documents it for each reason.
	Metadata map[string]string
	// Violations are the faults of the request, field by field.
	Violations []*errdetails.BadRequest_FieldViolation
}

func (e *Error) Error() string {
	if id := e.Metadata["request_id"]; id != "" {
		return fmt.Sprintf("%s (request %s)", e.Message, id)
	}
	return e.Message
}

// Retryable says whether the same call may succeed later.
func (e *Error) Retryable() bool {
	if said, ok := e.Metadata["retryable"]; ok {
		return said == "true"
	}
	return e.Code == codes.Unavailable
}

// ServerAway says whether an error means that the server could not be reached in time, which is no reason to end a
// training: its sums are cumulative, so that the next report makes up for one that was lost.
func ServerAway(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && (refused.Retryable() || refused.Code == codes.DeadlineExceeded)
}

// ReasonOf is the reason of an error, empty if it has none.
func ReasonOf(err error) string {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return ""
}

// FromStatus makes an Error of what a stub returned; nil and io.EOF, which ends a stream, stay what they are.
func FromStatus(err error) error {
	found, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	refused := &Error{Code: found.Code(), Message: found.Message()}
	for _, detail := range found.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.Domain == domain {
				refused.Reason, refused.Metadata = detail.Reason, detail.Metadata
			}
		case *errdetails.BadRequest:
			refused.Violations = detail.FieldViolations
		}
	}
	return refused
}
