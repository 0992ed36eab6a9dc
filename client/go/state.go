package wattwise

// Link says whether the server can be told about the trial now.
type Link string

// Progress says how far the trial has come.
type Progress string

// Event changes the state of a trial.
type Event string

const (
	// Tracked: the server answers and has the trial.
	Tracked Link = "tracked"
	// Away: the server does not answer; the newest report is kept until it does.
	Away Link = "away"
	// Detached: the server does not have the trial; nothing is sent until the trial ends, then it is imported.
	Detached Link = "detached"

	// Running: the training goes on.
	Running Progress = "running"
	// Decided: the server has ended the trial.
	Decided Progress = "decided"
	// Ended: this trainer has ended the trial, by a decision of its own or because its training ended.
	Ended Progress = "ended"
	// Settled: nothing is left to deliver; the server knows how the trial ended, or has deleted it.
	Settled Progress = "settled"

	// Answered: the server has answered, and the trial goes on.
	Answered Event = "answered"
	// Stopped: the server has ended the trial, in an answer or by a message of its own.
	Stopped Event = "stopped"
	// Deleted: the server says that the trial was deleted with its job.
	Deleted Event = "deleted"
	// Unreachable: the server does not answer.
	Unreachable Event = "unreachable"
	// Unknown: the server does not have the trial, and has not deleted it.
	Unknown Event = "unknown"
	// Closed: this trainer ends the trial.
	Closed Event = "closed"
	// Delivered: the server has everything that it can get of a trial that is over.
	Delivered Event = "delivered"
)

// TrialState is the state of a trial in this client. An event moves the link and the progress along one table each; one
// that a table does not name changes nothing. A settled trial changes no more, and neither does its link.
type TrialState struct {
	Link     Link
	Progress Progress
}

var links = map[Link]map[Event]Link{
	Tracked: {Unreachable: Away, Unknown: Detached},
	Away:    {Answered: Tracked, Stopped: Tracked, Deleted: Tracked, Unknown: Detached},
}

var progresses = map[Progress]map[Event]Progress{
	Running: {Stopped: Decided, Deleted: Settled, Closed: Ended},
	Decided: {Deleted: Settled, Delivered: Settled},
	Ended:   {Stopped: Decided, Deleted: Settled, Delivered: Settled},
}

// After returns the state after an event.
func (s TrialState) After(event Event) TrialState {
	if s.Progress == Settled {
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
