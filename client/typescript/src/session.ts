/** A running trial's line to the server: reports, heartbeats by themselves, and a stop that may come at any time. */

import type { Client } from "./client.js";
import { WattwiseError } from "./errors.js";
import type { ResultStream } from "./results.js";
import { type Decision, EndReason, TrainingResult, type Trial, type TrialId } from "./stubs/wattwise/v1/trial.js";

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
  readonly #beatMs: number;
  readonly #stop = new AbortController();
  readonly #timer: NodeJS.Timeout;
  #stream: ResultStream | undefined;
  #pending: Pending | undefined;
  #queue: Promise<unknown> = Promise.resolve();
  #beating = false;
  #over = false;
  #decision: Decision | undefined;

  constructor(client: Client, id: TrialId, leaseSeconds: number, timeoutMs: number) {
    this.id = id;
    this.#client = client;
    this.#timeoutMs = timeoutMs;
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

  /** The server's newest decision; undefined before the first. */
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
   * @throws ServerUnavailableError if nobody answers in time. Training may go on: the sums of the next report say all
   *   that this one would have said.
   * @throws InvalidResultError if the numbers make no sense; nothing was kept of them.
   */
  report(measurement: Measurement): Promise<Decision> {
    const answer = this.#queue.then(() =>
      this.#deliver(TrainingResult.fromPartial({ ...measurement, trial: this.id })),
    );
    this.#queue = answer.catch(() => {});
    return answer;
  }

  /** Says that the trainer is gone. A trial that is decided already is left as it is. */
  async end(reason: TrainerReason): Promise<Trial> {
    this.close();
    return this.#client.endTrial(this.id, reason, { timeoutMs: this.#timeoutMs });
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
    const answer = await this.#byStream(result);
    return answer ?? this.#note(await this.#client.reportResult(result, { timeoutMs: this.#timeoutMs }));
  }

  /** The answer that comes over the stream; undefined if there is none to be had. */
  async #byStream(result: TrainingResult): Promise<Decision | undefined> {
    const stream = this.#stream;
    if (stream === undefined) {
      return undefined;
    }
    const silence = setTimeout(() => stream.cancel(), this.#timeoutMs);
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
    if (failure === undefined || failure.retryable) {
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
        if (!this.#over && this.#stream === undefined) {
          this.#open();
        }
      } catch {
        // The next report tells the trainer, if it is still so then.
      } finally {
        this.#beating = false;
      }
    }
  }

  #note(decision: Decision): Decision {
    if (!this.#decision?.stopTrain) {
      this.#decision = decision;
    }
    if (decision.stopTrain && !this.#stop.signal.aborted) {
      this.#stop.abort(decision);
      this.#over = true;
      clearInterval(this.#timer);
      this.#stream?.close();
    }
    return decision;
  }
}
