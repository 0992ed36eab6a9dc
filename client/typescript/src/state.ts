/** The state of a trial: its link to the server, its progress, and the events that change them. */

/** Whether the server answers and has the trial. */
export enum Link {
  /** The server answers and has the trial. */
  Tracked = "tracked",
  /** The server does not answer; the newest report is kept until it does. */
  Away = "away",
  /** The server does not have the trial; nothing is sent until the trial ends, then it is imported. */
  Detached = "detached",
}

/** How far the trial has come. */
export enum Progress {
  /** The training goes on. */
  Running = "running",
  /** The server has ended the trial. */
  Decided = "decided",
  /** This trainer has ended the trial, by a decision of its own or because its training ended. */
  Ended = "ended",
  /** Nothing is left to deliver: the server knows how the trial ended, or has deleted it. */
  Settled = "settled",
}

/** What changes the state of a trial. */
export enum TrialEvent {
  /** The server has answered, and the trial goes on. */
  Answered = "answered",
  /** The server has ended the trial, in an answer or by a message of its own. */
  Stopped = "stopped",
  /** The server says that the trial was deleted with its job. */
  Deleted = "deleted",
  /** The server does not answer. */
  Unreachable = "unreachable",
  /** The server does not have the trial, and has not deleted it. */
  Unknown = "unknown",
  /** This trainer ends the trial. */
  Closed = "closed",
  /** The server has everything that it can get of a trial that is over. */
  Delivered = "delivered",
}

export interface TrialState {
  readonly link: Link;
  readonly progress: Progress;
}

type Table<State extends string> = Record<State, { readonly [event in TrialEvent]?: State }>;

const LINKS: Table<Link> = {
  tracked: { unreachable: Link.Away, unknown: Link.Detached },
  away: { answered: Link.Tracked, stopped: Link.Tracked, deleted: Link.Tracked, unknown: Link.Detached },
  detached: {},
};
const PROGRESSES: Table<Progress> = {
  running: { stopped: Progress.Decided, deleted: Progress.Settled, closed: Progress.Ended },
  decided: { deleted: Progress.Settled, delivered: Progress.Settled },
  ended: { stopped: Progress.Decided, deleted: Progress.Settled, delivered: Progress.Settled },
  settled: {},
};

/**
 * Returns the state after an event, which moves the link and the progress along one table each. A settled trial changes no
 * more, and neither does its link.
 */
export function after(state: TrialState, event: TrialEvent): TrialState {
  const { link, progress } = state;
  return progress === Progress.Settled
    ? state
    : { link: LINKS[link][event] ?? link, progress: PROGRESSES[progress][event] ?? progress };
}
