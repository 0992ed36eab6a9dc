package wattwise

// Link says whether the server answers and has the trial.
type Link string

// Progress says how far the trial has come.
type Progress string

// TrialEvent changes the state of a trial.
type TrialEvent string

const (
	// LinkTracked: the server answers and has the trial.
	LinkTracked Link = "tracked"
	// LinkAway: the server does not answer; the newest report is kept until it does.
	LinkAway Link = "away"
	// LinkDetached: the server does not have the trial; nothing is sent until the trial ends, then it is imported.
	LinkDetached Link = "detached"

	// ProgressRunning: the training goes on.
	ProgressRunning Progress = "running"
	// ProgressDecided: the server has ended the trial.
	ProgressDecided Progress = "decided"
	// ProgressEnded: this trainer has ended the trial, by a decision of its own or because its training ended.
	ProgressEnded Progress = "ended"
	// ProgressSettled: nothing is left to deliver; the server knows how the trial ended, or has deleted it.
	ProgressSettled Progress = "settled"

	// EventAnswered: the server has answered, and the trial goes on.
	EventAnswered TrialEvent = "answered"
	// EventStopped: the server has ended the trial, in an answer or by a message of its own.
	EventStopped TrialEvent = "stopped"
	// EventDeleted: the server says that the trial was deleted with its job.
	EventDeleted TrialEvent = "deleted"
	// EventUnreachable: the server does not answer.
	EventUnreachable TrialEvent = "unreachable"
	// EventUnknown: the server does not have the trial, and has not deleted it.
	EventUnknown TrialEvent = "unknown"
	// EventClosed: this trainer ends the trial.
	EventClosed TrialEvent = "closed"
	// EventDelivered: the server has everything that it can get of a trial that is over.
	EventDelivered TrialEvent = "delivered"
)

// TrialState is the state of a trial in this client. An event moves the link and the progress along one table each; one
// that a table does not name changes nothing. A settled trial changes no more, and neither does its link.
type TrialState struct {
	Link     Link
	Progress Progress
}

var links = map[Link]map[TrialEvent]Link{
	LinkTracked: {EventUnreachable: LinkAway, EventUnknown: LinkDetached},
	LinkAway:    {EventAnswered: LinkTracked, EventStopped: LinkTracked, EventDeleted: LinkTracked, EventUnknown: LinkDetached},
}

var progresses = map[Progress]map[TrialEvent]Progress{
	ProgressRunning: {EventStopped: ProgressDecided, EventDeleted: ProgressSettled, EventClosed: ProgressEnded},
	ProgressDecided: {EventDeleted: ProgressSettled, EventDelivered: ProgressSettled},
	ProgressEnded:   {EventStopped: ProgressDecided, EventDeleted: ProgressSettled, EventDelivered: ProgressSettled},
}

// After returns the state after an event.
func (s TrialState) After(event TrialEvent) TrialState {
	if s.Progress == ProgressSettled {
		return s
	}
	if link, ok := links[s.Link][event]; ok {
		s.Link = link
	}
	if progress, ok := progresses[s.Progress][event]; ok {
		s.Progress = progress
	}
	return s
}
