/** A running trial's line to the server: reports, heartbeats by themselves, and a stop that may come at any time. */

import { setTimeout as sleep } from "node:timers/promises";
import type { Client } from "./client.js";
import { pauses } from "./backoff.js";
import { ServerUnavailableError, UnsupportedCallError, WattwiseError } from "./errors.js";
import type { ResultStream } from "./results.js";
import type { JobSpec } from "./stubs/wattwise/v1/job.js";
import { Decision, EndReason, TrainingResult, type Trial, type TrialId } from "./stubs/wattwise/v1/trial.js";

type Needed = "timeSeconds" | "energyJoules" | "metric" | "currentEpoch";

/** What was measured from the trial's start up to the end of an epoch. */
export type Measurement = Pick<TrainingResult, Needed> & Partial<Omit<TrainingResult, "trial">>;

/** The reasons that a trainer may give. */
export type TrainerReason =
  | EndReason.END_REASON_COMPLETED
  | EndReason.END_REASON_ERROR
  | EndReason.END_REASON_OUT_OF_MEMORY
  | EndReason.END_REASON_PREEMPTED;

const LONGEST_BEAT_MS = 60_000;
const LEAST_MS = 500;

interface Pending {
  answered: (decision: Decision | undefined) => void;
  refused: (error: WattwiseError) => void;
}

/**
 * Made by `Client.launch` or `Client.follow`. It talks over a stream, and by single calls whenever there is none.
 *
 * A heartbeat is sent three times per lease for as long as the event loop turns: an epoch that blocks it for longer than
 * the lease belongs into a worker thread or a process of its own.
 */
export class TrialSession {
  readonly id: TrialId;
  readonly #client: Client;
  readonly #timeoutMs: number;
  readonly #spec: JobSpec | undefined;
  readonly #beatMs: number;
  readonly #stop = new AbortController();
  readonly #timer: NodeJS.Timeout;
  #stream: ResultStream | undefined;
  #pending: Pending | undefined;
  #queue: Promise<unknown> = Promise.resolve();
  #streamless = false;
  #beating = false;
  #over = false;
  #decision: Decision | undefined;
  /** The newest report that the server has not answered, and why. */
  #kept: TrainingResult | undefined;
  #away: WattwiseError | undefined;

  /** @param spec the job, to stop by while the server is away; without it training goes on then. */
  constructor(client: Client, id: TrialId, leaseSeconds: number, timeoutMs: number, spec?: JobSpec) {
    this.id = id;
    this.#client = client;
    this.#timeoutMs = timeoutMs;
    this.#spec = spec;
    // A lease of 0 never runs out; a beat then only finds out whether the stream is still there.
    this.#beatMs = leaseSeconds > 0 ? Math.min((leaseSeconds * 1000) / 3, LONGEST_BEAT_MS) : LONGEST_BEAT_MS;
    this.#timer = setInterval(() => void this.#beat(), this.#beatMs);
    this.#timer.unref();
    this.#open();
  }

  /** The batch size to train with. */
  get batchSize(): number {
    return this.id.batchSize;
  }

  /** The newest decision; undefined before the first. */
  get decision(): Decision | undefined {
    return this.#decision;
  }

  /** Aborted once the training must stop, in mid-epoch too; its reason is the decision. */
  get stopped(): AbortSignal {
    return this.#stop.signal;
  }

  /**
   * Reports an epoch and waits for the decision. Once the trial is stopped that is the answer, and nothing is sent.
   *
   * While the server is away the newest report is kept, and sent when it is back. At the target or the last epoch the
   * answer is to stop even so.
   *
   * @throws ServerUnavailableError if nobody answers in time, and at once while that is known: train on.
   * @throws InvalidResultError if the numbers make no sense; nothing was kept of them.
   */
  report(measurement: Measurement): Promise<Decision> {
    const answer = this.#queue.then(() =>
      this.#deliver(TrainingResult.fromPartial({ ...measurement, trial: this.id })),
    );
    this.#queue = answer.catch(() => {});
    return answer;
  }

  /** Delivers what is kept and says that the trainer is gone. A trial that is decided already is left as it is. */
  async end(reason: TrainerReason): Promise<Trial> {
    const deadline = Date.now() + this.#timeoutMs;
    if (this.#kept !== undefined) {
      await this.#redeliver(this.#kept);
    }
    this.close();
    return this.#client.endTrial(this.id, reason, { timeoutMs: Math.max(deadline - Date.now(), LEAST_MS) });
  }

  /** Ends the line and the heartbeats, and says nothing to the server. */
  close(): void {
    this.#over = true;
    clearInterval(this.#timer);
    this.#stream?.close();
    this.#stream = undefined;
    this.#pending?.answered(undefined);
  }

  async #deliver(result: TrainingResult): Promise<Decision> {
    if (this.#decision?.stopTrain) {
      return this.#decision;
    }
    if (this.#kept !== undefined && this.#away !== undefined) {
      this.#kept = result;
      return this.#alone(result, this.#away);
    }
    const deadline = Date.now() + this.#timeoutMs;
    try {
      const answer = await this.#byStream(result);
      const timeoutMs = Math.max(deadline - Date.now(), LEAST_MS);
      return answer ?? this.#note(await this.#client.reportResult(result, { timeoutMs }));
    } catch (error) {
      if (!isAway(error)) {
        throw error;
      }
      [this.#kept, this.#away] = [result, error];
      void this.#seek();
      return this.#alone(result, error);
    }
  }

  /** Stops a training that has reached its target or its last epoch, as the server will when it hears of it. */
  #alone(result: TrainingResult, away: WattwiseError): Decision {
    const { targetMetric = 0, higherIsBetterMetric, maxEpochs = 0 } = this.#spec ?? {};
    const targetReached = higherIsBetterMetric ? result.metric >= targetMetric : result.metric <= targetMetric;
    if (this.#spec === undefined || (!targetReached && result.currentEpoch < maxEpochs)) {
      throw away;
    }
    const message = `${targetReached ? "target" : "max epochs"} reached while the server is away`;
    this.#decision = Decision.fromPartial({ stopTrain: true, targetReached, message });
    this.#stop.abort(this.#decision);
    return this.#decision;
  }

  /** Looks for a server that is away, with what is kept for it. */
  async #seek(): Promise<void> {
    for (const pause of pauses()) {
      await sleep(pause, undefined, { ref: false });
      if (this.#kept === undefined || this.#over) {
        return;
      }
      await this.#redeliver(this.#kept);
    }
  }

  async #redeliver(kept: TrainingResult): Promise<void> {
    try {
      this.#note(await this.#client.reportResult(kept, { timeoutMs: this.#timeoutMs / 2 }));
    } catch (error) {
      if (isAway(error)) {
        return;
      }
      // What is refused stays refused; the next report tells the trainer, if it is still so then.
    }
    if (this.#kept === kept) {
      this.#kept = undefined;
      this.#open();
    }
  }

  /** The answer that comes over the stream; undefined if there is none to be had. */
  async #byStream(result: TrainingResult): Promise<Decision | undefined> {
    const stream = this.#stream;
    if (stream === undefined) {
      return undefined;
    }
    // Half of the time, so that a single call has the other half.
    const silence = setTimeout(() => stream.cancel(), this.#timeoutMs / 2);
    try {
      return await new Promise((answered, refused) => {
        this.#pending = { answered, refused };
        stream.report(result);
      });
    } finally {
      clearTimeout(silence);
      this.#pending = undefined;
    }
  }

  #open(): void {
    if (this.#over || this.#streamless || this.#stream !== undefined) {
      return;
    }
    const stream = this.#client.streamResults();
    this.#stream = stream;
    // The first message tells the server whose stream it is, so that it can push a stop at any time.
    stream.heartbeat(this.id);
    void this.#listen(stream);
  }

  async #listen(stream: ResultStream): Promise<void> {
    let failure: WattwiseError | undefined;
    try {
      for await (const decision of stream) {
        this.#note(decision);
        this.#pending?.answered(decision);
      }
    } catch (error) {
      failure = error instanceof WattwiseError ? error : new WattwiseError(String(error), { cause: error });
    }
    if (this.#stream === stream) {
      this.#stream = undefined;
    }
    // A server, or what stands before it, that knows no streams is spoken to by single calls.
    this.#streamless ||= failure instanceof UnsupportedCallError;
    if (failure === undefined || failure.retryable || this.#streamless) {
      this.#pending?.answered(undefined);
    } else {
      this.#pending?.refused(failure);
    }
  }

  async #beat(): Promise<void> {
    if (this.#stream !== undefined) {
      this.#stream.heartbeat(this.id);
    } else if (!this.#beating) {
      this.#beating = true;
      try {
        this.#note(await this.#client.heartbeat(this.id, { timeoutMs: this.#beatMs }));
        this.#open();
      } catch {
        // The next report tells the trainer, if it is still so then.
      } finally {
        this.#beating = false;
      }
    }
  }

  #note(decision: Decision): Decision {
    if (this.#over) {
      return decision;
    }
    this.#decision = decision;
    if (decision.stopTrain) {
      this.#stop.abort(decision);
      this.#over = true;
      clearInterval(this.#timer);
      this.#stream?.close();
    }
    return decision;
  }
}

function isAway(error: unknown): error is WattwiseError {
  return error instanceof ServerUnavailableError || (error instanceof WattwiseError && error.retryable);
}
