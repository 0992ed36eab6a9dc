/** The session of a running trial: reports, automatic heartbeats, and stops that the server pushes. */

import { setTimeout as sleep } from "node:timers/promises";
import { type CallOptions, pauses } from "./backoff.js";
import { ServerUnavailableError, UnsupportedCallError, WattwiseError } from "./errors.js";
import type { ResultStream } from "./results.js";
import type { JobSpec } from "./stubs/wattwise/v1/job.js";
import { Decision, EndReason, TrainingResult, type Trial, type TrialId } from "./stubs/wattwise/v1/trial.js";

type Required = "timeSeconds" | "energyJoules" | "metric" | "currentEpoch";

/** The report of an epoch: its metric, and the sums of time and energy since the trial's first epoch. */
export type EpochReport = Pick<TrainingResult, Required> & Partial<Omit<TrainingResult, "trial">>;

/** The end reasons that a trainer may give. */
export type TrainerReason =
  | EndReason.END_REASON_COMPLETED
  | EndReason.END_REASON_ERROR
  | EndReason.END_REASON_OUT_OF_MEMORY
  | EndReason.END_REASON_PREEMPTED;

/** The calls that a session makes; `Client` implements them. */
export interface TrialCalls {
  streamResults(): ResultStream;
  reportResult(result: TrainingResult, options?: CallOptions): Promise<Decision>;
  heartbeat(trial: TrialId, options?: CallOptions): Promise<Decision>;
  endTrial(trial: TrialId, reason: TrainerReason, options?: CallOptions): Promise<Trial>;
}

const HEARTBEATS_PER_LEASE = 3;
const LONGEST_HEARTBEAT_MS = 60_000;
const SHORTEST_TIMEOUT_MS = 500;

/** A report on the stream that has no answer yet. */
interface Unanswered {
  resolve: (decision: Decision | undefined) => void;
  reject: (error: WattwiseError) => void;
}

/**
 * The session of one trial. `Client.launch` and `Client.openSession` create it. It uses a stream, and unary calls while
 * there is no stream.
 *
 * The session sends three heartbeats per lease as long as the event loop runs. If an epoch blocks the event loop for
 * longer than the lease, train in a worker thread or in another process.
 */
export class TrialSession {
  readonly id: TrialId;
  readonly #calls: TrialCalls;
  readonly #timeoutMs: number;
  readonly #spec: JobSpec | undefined;
  readonly #heartbeatMs: number;
  readonly #stop = new AbortController();
  readonly #timer: NodeJS.Timeout;
  #stream: ResultStream | undefined;
  #unanswered: Unanswered | undefined;
  #queue: Promise<unknown> = Promise.resolve();
  #streamless = false;
  #heartbeatRuns = false;
  #closed = false;
  #decision: Decision | undefined;
  /** The newest report that could not be delivered, and why. */
  #undelivered: TrainingResult | undefined;
  #outage: WattwiseError | undefined;

  /** @param spec the job, which decides when to stop while the server is away; without it training continues. */
  constructor(calls: TrialCalls, id: TrialId, leaseSeconds: number, timeoutMs: number, spec?: JobSpec) {
    this.id = id;
    this.#calls = calls;
    this.#timeoutMs = timeoutMs;
    this.#spec = spec;
    // A lease of 0 never expires; its heartbeats only detect a broken stream.
    const interval = leaseSeconds > 0 ? (leaseSeconds * 1000) / HEARTBEATS_PER_LEASE : LONGEST_HEARTBEAT_MS;
    this.#heartbeatMs = Math.min(interval, LONGEST_HEARTBEAT_MS);
    this.#timer = setInterval(() => void this.#heartbeat(), this.#heartbeatMs);
    this.#timer.unref();
    this.#openStream();
  }

  /** The batch size to train with. */
  get batchSize(): number {
    return this.id.batchSize;
  }

  /** The newest decision; undefined before the first. */
  get decision(): Decision | undefined {
    return this.#decision;
  }

  /** Aborted when training must stop, also in the middle of an epoch. Its reason is the decision. */
  get stopped(): AbortSignal {
    return this.#stop.signal;
  }

  /**
   * Reports an epoch and waits for the decision. After a stop, it returns that decision and sends nothing.
   *
   * While the server is away, the session keeps the newest report and sends it when the server is back. At the target or
   * after the last epoch, it returns a decision to stop even without the server.
   *
   * @throws ServerUnavailableError if no answer arrives in time, and immediately during a known outage: continue training.
   * @throws InvalidResultError if the server refuses the numbers; it has stored nothing.
   */
  report(report: EpochReport): Promise<Decision> {
    const answer = this.#queue.then(() => this.#deliver(TrainingResult.fromPartial({ ...report, trial: this.id })));
    this.#queue = answer.catch(() => {});
    return answer;
  }

  /** Delivers an undelivered report and ends the trial. A trial that has ended before does not change. */
  async end(reason: TrainerReason): Promise<Trial> {
    const deadline = Date.now() + this.#timeoutMs;
    if (this.#undelivered !== undefined) {
      await this.#redeliver(this.#undelivered);
    }
    this.close();
    return this.#calls.endTrial(this.id, reason, { timeoutMs: Math.max(deadline - Date.now(), SHORTEST_TIMEOUT_MS) });
  }

  /** Ends the session and its heartbeats without ending the trial. */
  close(): void {
    this.#closed = true;
    clearInterval(this.#timer);
    this.#stream?.close();
    this.#stream = undefined;
    this.#unanswered?.resolve(undefined);
  }

  async #deliver(result: TrainingResult): Promise<Decision> {
    if (this.#decision?.stopTrain) {
      return this.#decision;
    }
    if (this.#undelivered !== undefined && this.#outage !== undefined) {
      this.#undelivered = result;
      return this.#decideWithoutServer(result, this.#outage);
    }
    const deadline = Date.now() + this.#timeoutMs;
    try {
      const answer = await this.#reportOnStream(result);
      const timeoutMs = Math.max(deadline - Date.now(), SHORTEST_TIMEOUT_MS);
      return answer ?? this.#apply(await this.#calls.reportResult(result, { timeoutMs }));
    } catch (error) {
      if (!isOutage(error)) {
        throw error;
      }
      [this.#undelivered, this.#outage] = [result, error];
      void this.#waitForServer();
      return this.#decideWithoutServer(result, error);
    }
  }

  /** Stops a training that has reached its target or its last epoch, as the server would. */
  #decideWithoutServer(result: TrainingResult, outage: WattwiseError): Decision {
    const { targetMetric = 0, higherIsBetterMetric, maxEpochs = 0 } = this.#spec ?? {};
    const targetReached = higherIsBetterMetric ? result.metric >= targetMetric : result.metric <= targetMetric;
    if (this.#spec === undefined || (!targetReached && result.currentEpoch < maxEpochs)) {
      throw outage;
    }
    const message = `${targetReached ? "target" : "max epochs"} reached while the server is away`;
    this.#decision = Decision.fromPartial({ stopTrain: true, targetReached, message });
    this.#stop.abort(this.#decision);
    return this.#decision;
  }

  /** Sends the undelivered report again until the server answers. */
  async #waitForServer(): Promise<void> {
    for (const pause of pauses()) {
      await sleep(pause, undefined, { ref: false });
      if (this.#undelivered === undefined || this.#closed) {
        return;
      }
      await this.#redeliver(this.#undelivered);
    }
  }

  async #redeliver(result: TrainingResult): Promise<void> {
    try {
      this.#apply(await this.#calls.reportResult(result, { timeoutMs: this.#timeoutMs / 2 }));
    } catch (error) {
      if (isOutage(error)) {
        return;
      }
      // A retry does not help. If the fault persists, the next report throws it.
    }
    if (this.#undelivered === result) {
      this.#undelivered = undefined;
      this.#openStream();
    }
  }

  /** The answer on the stream; undefined if there is no stream or it ends without an answer. */
  async #reportOnStream(result: TrainingResult): Promise<Decision | undefined> {
    const stream = this.#stream;
    if (stream === undefined) {
      return undefined;
    }
    // Half of the time, which leaves the other half for a unary call.
    const timeout = setTimeout(() => stream.cancel(), this.#timeoutMs / 2);
    try {
      return await new Promise((resolve, reject) => {
        this.#unanswered = { resolve, reject };
        stream.report(result);
      });
    } finally {
      clearTimeout(timeout);
      this.#unanswered = undefined;
    }
  }

  #openStream(): void {
    if (this.#closed || this.#streamless || this.#stream !== undefined) {
      return;
    }
    const stream = this.#calls.streamResults();
    this.#stream = stream;
    // The first message names the trial, so that the server can push a stop at any time.
    stream.heartbeat(this.id);
    void this.#listen(stream);
  }

  async #listen(stream: ResultStream): Promise<void> {
    let failure: WattwiseError | undefined;
    try {
      for await (const decision of stream) {
        this.#apply(decision);
        this.#unanswered?.resolve(decision);
      }
    } catch (error) {
      failure = error instanceof WattwiseError ? error : new WattwiseError(String(error), { cause: error });
    }
    if (this.#stream === stream) {
      this.#stream = undefined;
    }
    // The server, or a proxy in front of it, does not support streams: use unary calls only.
    this.#streamless ||= failure instanceof UnsupportedCallError;
    if (failure === undefined || failure.retryable || this.#streamless) {
      this.#unanswered?.resolve(undefined);
    } else {
      this.#unanswered?.reject(failure);
    }
  }

  async #heartbeat(): Promise<void> {
    if (this.#stream !== undefined) {
      this.#stream.heartbeat(this.id);
    } else if (!this.#heartbeatRuns) {
      this.#heartbeatRuns = true;
      try {
        this.#apply(await this.#calls.heartbeat(this.id, { timeoutMs: this.#heartbeatMs }));
        this.#openStream();
      } catch {
        // If the fault persists, the next report throws it.
      } finally {
        this.#heartbeatRuns = false;
      }
    }
  }

  #apply(decision: Decision): Decision {
    if (this.#closed) {
      return decision;
    }
    this.#decision = decision;
    if (decision.stopTrain) {
      this.#stop.abort(decision);
      this.#closed = true;
      clearInterval(this.#timer);
      this.#stream?.close();
    }
    return decision;
  }
}

function isOutage(error: unknown): error is WattwiseError {
  return error instanceof ServerUnavailableError || (error instanceof WattwiseError && error.retryable);
}
