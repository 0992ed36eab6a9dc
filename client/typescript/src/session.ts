/** The session of a running trial: reports, automatic heartbeats, and stops that the server pushes. */

import { setTimeout as sleep } from "node:timers/promises";
import { MOST_WARNINGS, present } from "./answers.js";
import { type CallOptions, pauses } from "./backoff.js";
import {
  ConfigurationError,
  InvalidAnswerError,
  InvalidJobSpecError,
  InvalidRequestError,
  InvalidResultError,
  JobDiffersError,
  JobNotFoundError,
  NoBatchSizeLeftError,
  NotPossibleNowError,
  PermissionDeniedError,
  ServerUnavailableError,
  TrialDeletedError,
  TrialNotFoundError,
  UnauthenticatedError,
  UnsupportedCallError,
  WattwiseError,
} from "./errors.js";
import { checkNumbers, type ResultStream } from "./results.js";
import { after, Link, Progress, TrialEvent, type TrialState } from "./state.js";
import type { Duration } from "./stubs/google/protobuf/duration.js";
import { ImportTrialRequest, type ImportTrialResponse } from "./stubs/wattwise/v1/batch_size_optimizer.js";
import { Direction, type JobSpec } from "./stubs/wattwise/v1/job.js";
import {
  Decision,
  EndReason,
  Measurement,
  type Monitor,
  TrainingResult,
  type Trial,
  type TrialId,
  WarningReason,
} from "./stubs/wattwise/v1/trial.js";

type Required = "epoch" | "timeSeconds" | "metric";

/**
 * The report of an epoch: its metric, and the sums of time and energy since the trial's first epoch. Without
 * `energyJoules`, no energy was measured.
 */
export type EpochReport = { [name in Required]: number } & Partial<Omit<Measurement, "reportTime" | Required>> & {
    monitor?: Monitor;
  };

/** The end reasons that a trainer may give. */
export type TrainerReason =
  | EndReason.END_REASON_COMPLETED
  | EndReason.END_REASON_STOPPED_EARLY
  | EndReason.END_REASON_ERROR
  | EndReason.END_REASON_OUT_OF_MEMORY
  | EndReason.END_REASON_PREEMPTED;

/** The calls that a session makes; `Client` implements them. */
export interface TrialCalls {
  streamResults(): ResultStream;
  reportResult(result: TrainingResult, options?: CallOptions): Promise<Decision>;
  heartbeat(trial: TrialId, options?: CallOptions): Promise<Decision>;
  endTrial(trial: TrialId, reason: TrainerReason, options?: CallOptions): Promise<Trial>;
  registerJob(job: JobSpec, options?: CallOptions): Promise<unknown>;
  importTrial(trial: ImportTrialRequest, options?: CallOptions): Promise<ImportTrialResponse>;
}

/** What a session knows about its launch. */
export interface LaunchedTrial {
  /** The job, which decides when to stop without the server; without it training continues. */
  spec?: JobSpec;
  /** The job as the launch registered it, to register it again; default: `spec`. */
  job?: JobSpec;
}

/** The pause between heartbeats if the server names none, which then only detect a broken stream. */
const LONGEST_HEARTBEAT_MS = 60_000;
/** Below a third of the shortest lease. */
const SHORTEST_HEARTBEAT_MS = 250;
const SHORTEST_TIMEOUT_MS = 500;
/** The default of `JobSpec.maxEpochs`, for a job that no server has registered. */
const DEFAULT_MAX_EPOCHS = 100;
/** The longest wait before a broken stream is opened again, at random, since the trainers of a server lose theirs together. */
const REOPEN_MS = 2_000;

/** A report on the stream that has no answer yet. */
interface Unanswered {
  resolve: (decision: Decision | undefined) => void;
  reject: (error: WattwiseError) => void;
}

/**
 * The session of one trial. `Client.launch` and `Client.openSession` create it. It uses a stream, and unary calls while
 * there is no stream.
 *
 * The session sends the heartbeats that the server asks for as long as the event loop runs. If an epoch blocks the event loop for
 * longer than the lease, train in a worker thread or in another process.
 */
export class TrialSession {
  readonly id: TrialId;
  /** The batch size to train with. */
  readonly batchSize: number;
  /** The job, if the session was opened with it. */
  readonly spec: JobSpec | undefined;
  readonly #calls: TrialCalls;
  readonly #timeoutMs: number;
  readonly #startTime = new Date();
  #heartbeatMs = LONGEST_HEARTBEAT_MS;
  readonly #stop = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #stream: ResultStream | undefined;
  #unanswered: Unanswered | undefined;
  #queue: Promise<unknown> = Promise.resolve();
  #streamless = false;
  #reopening: NodeJS.Timeout | undefined;
  /** Whether the previous stream broke soon, as all streams do through some proxies. */
  #brokeSoon = false;
  #heartbeatRuns = false;
  #state: TrialState = { link: Link.Tracked, progress: Progress.Running };
  #decision: Decision | undefined;
  readonly #job: JobSpec | undefined;
  #endReason: TrainerReason | undefined;
  readonly #measurements: Measurement[] = [];
  #monitor: Monitor | undefined;
  readonly #warned = new Set<string>();
  /** The newest report that could not be delivered, and why. */
  #undelivered: TrainingResult | undefined;
  #outage: WattwiseError | undefined;

  constructor(calls: TrialCalls, trial: Trial, timeoutMs: number, launched: LaunchedTrial = {}) {
    this.id = present(trial.id, "trial");
    this.batchSize = trial.batchSize;
    this.spec = launched.spec;
    this.#job = launched.job ?? launched.spec;
    this.#calls = calls;
    this.#timeoutMs = timeoutMs;
    this.#beatEvery(trial.heartbeatInterval);
    if (this.id.trialNumber > 0) {
      this.#openStream();
    }
  }

  /** The newest decision; undefined before the first. */
  get decision(): Decision | undefined {
    return this.#decision;
  }

  /** Aborted when training must stop, also in the middle of an epoch. Its reason is the decision. */
  get stopped(): AbortSignal {
    return this.#stop.signal;
  }

  /** The reason of the first `end`; undefined before it. */
  get endReason(): TrainerReason | undefined {
    return this.#endReason;
  }

  /** Whether it trains without the server, which does not know the trial. `end` then imports it. */
  get alone(): boolean {
    return this.#state.link === Link.Detached;
  }

  /**
   * Reports an epoch and waits for the decision. After a stop, it returns that decision and sends nothing.
   *
   * While the server is away, the session keeps the newest report and sends it when the server is back. At the target or
   * after the last epoch, it returns a decision to stop even without the server. If the server does not know the trial,
   * such as after the loss of its database, the session warns once and decides alone from then on.
   *
   * @throws ServerUnavailableError if no answer arrives in time, and immediately during a known outage: continue training.
   * @throws InvalidResultError if a number is missing, and nothing was sent; or if the server refuses the numbers, and has
   *   stored nothing.
   */
  report(report: EpochReport): Promise<Decision> {
    const answer = this.#queue.then(() => {
      const { monitor, ...measurement } = report;
      checkNumbers(measurement, "result.measurement");
      return this.#deliver(TrainingResult.fromPartial({ trial: this.id, measurement, monitor }));
    });
    this.#queue = answer.catch(() => {});
    return answer;
  }

  /**
   * Delivers an undelivered report and ends the trial. A trial that has ended before does not change. One that the server
   * does not know is imported with all its measurements. A second call keeps the reason of the first one.
   *
   * @returns undefined if the trial was deleted with its job: it is not imported. Without an earlier stop, `decision` then has
   *   `END_REASON_JOB_DELETED`.
   * @throws ServerUnavailableError if the server is away; `importRequest` has what could not be delivered.
   */
  async end(reason: TrainerReason): Promise<Trial | undefined> {
    this.#endReason ??= reason;
    const first = this.#endReason;
    const deadline = performance.now() + this.#timeoutMs;
    const remaining = (): CallOptions => ({ timeoutMs: Math.max(deadline - performance.now(), SHORTEST_TIMEOUT_MS) });
    if (this.#undelivered !== undefined) {
      await this.#redeliver(this.#undelivered);
    }
    this.close();
    if (!this.alone) {
      try {
        const trial = await this.#calls.endTrial(this.id, first, remaining());
        this.#note(TrialEvent.Delivered);
        return trial;
      } catch (error) {
        if (this.#stopIfDeleted(error)) {
          return undefined;
        }
        if (!this.#forgetIfUnknown(error)) {
          throw error;
        }
      }
    }
    await this.#calls.registerJob(present(this.#job, "spec"), remaining());
    const { trial } = await this.#calls.importTrial(this.importRequest(first), remaining());
    this.#note(TrialEvent.Delivered);
    return present(trial, "trial");
  }

  /**
   * The trial with all its measurements, for `Client.importTrial`. Store it if the server is still away when training ends,
   * and send it later, after `Client.registerJob`. `ImportTrialRequest.encode` and `decode` convert it to bytes and back.
   */
  importRequest(reason: TrainerReason): ImportTrialRequest {
    return ImportTrialRequest.fromPartial({
      jobId: this.id.jobId,
      launchId: this.id.launchId,
      batchSize: this.batchSize,
      measurements: this.#measurements,
      endReason: reason,
      startTime: this.#startTime,
      monitor: this.#monitor,
    });
  }

  /** Lets the session decide alone from now on, and warns why. `Client` calls it for a fallback. */
  trainAlone(what: string, cause: unknown): void {
    if (!this.alone) {
      this.#note(TrialEvent.Unknown);
      [this.#undelivered, this.#outage] = [undefined, undefined];
      this.#stopHeartbeats();
      this.#stream?.close();
      this.#stream = undefined;
      warn(`${what}: ${(cause as Error).message}`);
    }
  }

  /** Ends the session and its heartbeats without ending the trial. */
  close(): void {
    this.#note(TrialEvent.Closed);
    this.#stopHeartbeats();
    clearTimeout(this.#reopening);
    this.#stream?.close();
    this.#stream = undefined;
    this.#unanswered?.resolve(undefined);
  }

  async #deliver(result: TrainingResult): Promise<Decision> {
    if (this.#decision?.stopTrain) {
      return this.#decision;
    }
    if (this.alone) {
      this.#keep(result);
      return this.#decideWithoutServer(result);
    }
    if (this.#undelivered !== undefined && this.#outage !== undefined) {
      this.#keep(result);
      this.#undelivered = result;
      return this.#decideWithoutServer(result, this.#outage);
    }
    const deadline = performance.now() + this.#timeoutMs;
    try {
      let answer = await this.#reportOnStream(result);
      const timeoutMs = Math.max(deadline - performance.now(), SHORTEST_TIMEOUT_MS);
      answer ??= this.#apply(await this.#calls.reportResult(result, { timeoutMs }));
      this.#keep(result);
      return answer.stopTrain ? answer : this.#unlessOver(result, answer);
    } catch (error) {
      if (this.#stopIfDeleted(error)) {
        return present(this.#decision, "decision");
      }
      if (this.#forgetIfUnknown(error)) {
        this.#keep(result);
        return this.#decideWithoutServer(result);
      }
      if (isRefusal(error)) {
        throw error;
      }
      const outage = asOutage(error);
      this.#keep(result);
      this.#note(TrialEvent.Unreachable);
      [this.#undelivered, this.#outage] = [result, outage];
      void this.#waitForServer();
      return this.#decideWithoutServer(result, outage);
    }
  }

  /** Keeps a measurement, in case the trial has to be imported. */
  #keep(result: TrainingResult): void {
    if ((this.#measurements.at(-1)?.epoch ?? 0) < epochOf(result)) {
      this.#measurements.push(Measurement.fromPartial({ ...result.measurement, reportTime: new Date() }));
      this.#monitor = result.monitor ?? this.#monitor;
    }
  }

  /** Stops a training that has reached its target or its last epoch, as the server would. */
  #decideWithoutServer(result: TrainingResult, outage?: WattwiseError): Decision {
    const targetReached = this.#reachesTarget(result);
    if (this.spec === undefined || !this.#isOver(result)) {
      if (outage !== undefined) {
        throw outage;
      }
      const message = "training continues without the server";
      this.#decision = Decision.fromPartial({ lastEpoch: epochOf(result), message });
      return this.#decision;
    }
    const message = `${targetReached ? "target" : "max epochs"} reached without the server`;
    const endReason = targetReached ? EndReason.END_REASON_TARGET_REACHED : EndReason.END_REASON_MAX_EPOCHS;
    const lastEpoch = epochOf(result);
    this.#decision = Decision.fromPartial({ stopTrain: true, targetReached, endReason, lastEpoch, message });
    this.#note(TrialEvent.Closed);
    this.#stop.abort(this.#decision);
    return this.#decision;
  }

  #reachesTarget({ measurement }: TrainingResult): boolean {
    const metric = measurement?.metric ?? Number.NaN;
    const { value = Number.NaN, direction } = this.spec?.target ?? {};
    return direction === Direction.DIRECTION_LOWER_IS_BETTER ? metric <= value : metric >= value;
  }

  #isOver(result: TrainingResult): boolean {
    return this.#reachesTarget(result) || epochOf(result) >= (this.spec?.maxEpochs ?? DEFAULT_MAX_EPOCHS);
  }

  /** The server's decision to continue, or the session's own if the training has reached its target or last epoch. */
  #unlessOver(result: TrainingResult, answer: Decision): Decision {
    if (this.spec === undefined || !this.#isOver(result)) {
      return answer;
    }
    const epoch = `epoch ${epochOf(result)}, in which it reached its target or ended`;
    warn(`training stops although the server lets trial ${this.id.trialNumber} continue after ${epoch}: a fault`);
    return this.#decideWithoutServer(result);
  }

  /** Sends the undelivered report again until the server answers. */
  async #waitForServer(): Promise<void> {
    for (const pause of pauses()) {
      await sleep(pause, undefined, { ref: false });
      if (this.#undelivered === undefined || this.#timer === undefined) {
        return;
      }
      await this.#redeliver(this.#undelivered);
    }
  }

  async #redeliver(result: TrainingResult): Promise<void> {
    try {
      this.#apply(await this.#calls.reportResult(result, { timeoutMs: this.#timeoutMs / 2 }));
    } catch (error) {
      if (this.#stopIfDeleted(error) || !isRefusal(error) || this.#forgetIfUnknown(error)) {
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
    if (this.#timer === undefined || this.#streamless || this.#stream !== undefined) {
      return;
    }
    const stream = this.#calls.streamResults();
    this.#stream = stream;
    // The first message names the trial, so that the server can push a stop at any time.
    stream.heartbeat(this.id);
    void this.#listen(stream);
  }

  async #listen(stream: ResultStream): Promise<void> {
    const start = performance.now();
    let failure: WattwiseError | undefined;
    try {
      for await (const decision of stream) {
        if (this.#unanswered === undefined && !decision.stopTrain) {
          // A server that sends decisions without end would take the event loop from the training.
          stream.cancel();
          throw new InvalidAnswerError("the server sent a decision on the stream that answers nothing");
        }
        this.#apply(decision);
        this.#unanswered?.resolve(decision);
        this.#unanswered = undefined;
      }
    } catch (error) {
      failure = error instanceof WattwiseError ? error : new WattwiseError(String(error), { cause: error });
    }
    if (this.#stream === stream) {
      this.#stream = undefined;
    }
    // The server, or a proxy in front of it, does not support streams: use unary calls only.
    this.#streamless ||= failure instanceof UnsupportedCallError;
    if (failure?.status === "UNAVAILABLE") {
      this.#reopenSoon(performance.now() - start);
    }
    if (failure === undefined || !isRefusal(failure)) {
      this.#unanswered?.resolve(undefined);
    } else {
      this.#unanswered?.reject(failure);
      this.#stopIfDeleted(failure);
      this.#forgetIfUnknown(failure);
    }
  }

  /** Opens a stream again, perhaps to another server, before the next heartbeat. */
  #reopenSoon(lastedMs: number): void {
    const soon = lastedMs < REOPEN_MS;
    if (this.#timer !== undefined && !(soon && this.#brokeSoon)) {
      this.#reopening = setTimeout(() => void this.#heartbeat(), Math.random() * REOPEN_MS);
      this.#reopening.unref();
    }
    this.#brokeSoon = soon;
  }

  /** Sends heartbeats in the interval that an answer of the server names. */
  #beatEvery(interval: Duration | undefined): void {
    const named = interval && Number(interval.seconds) * 1000 + interval.nanos / 1e6;
    const milliseconds = Math.min(Math.max(named ?? LONGEST_HEARTBEAT_MS, SHORTEST_HEARTBEAT_MS), LONGEST_HEARTBEAT_MS);
    if (this.#timer === undefined || milliseconds !== this.#heartbeatMs) {
      clearInterval(this.#timer);
      this.#heartbeatMs = milliseconds;
      this.#timer = setInterval(() => void this.#heartbeat(), milliseconds);
      this.#timer.unref();
    }
  }

  #stopHeartbeats(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  async #heartbeat(): Promise<void> {
    if (this.#stream !== undefined) {
      this.#stream.heartbeat(this.id);
    } else if (!this.#heartbeatRuns) {
      this.#heartbeatRuns = true;
      try {
        this.#apply(await this.#calls.heartbeat(this.id, { timeoutMs: this.#heartbeatMs }));
        this.#openStream();
      } catch (error) {
        // If another fault persists, the next report throws it.
        this.#stopIfDeleted(error);
        this.#forgetIfUnknown(error);
        if (!isRefusal(error)) {
          this.#note(TrialEvent.Unreachable);
        }
      } finally {
        this.#heartbeatRuns = false;
      }
    }
  }

  /** Stops the training if an error says that the trial was deleted with its job, which must not come back. */
  #stopIfDeleted(error: unknown): boolean {
    if (!(error instanceof TrialDeletedError)) {
      return false;
    }
    const endReason = EndReason.END_REASON_JOB_DELETED;
    this.#apply(Decision.fromPartial({ stopTrain: true, endReason, message: error.message }));
    // Also if a decision came before.
    this.#note(TrialEvent.Deleted);
    return true;
  }

  /** Trains alone if an error says that the server does not know the trial, and the session knows its job. */
  #forgetIfUnknown(error: unknown): boolean {
    const unknown = error instanceof TrialNotFoundError || error instanceof JobNotFoundError;
    if (!unknown || this.spec === undefined || this.#isDecided()) {
      return false;
    }
    this.trainAlone("training continues without the server, which does not know the trial", error);
    return true;
  }

  #note(event: TrialEvent): void {
    this.#state = after(this.#state, event);
  }

  /** Whether the server has ended the trial, or knows how it ended. */
  #isDecided(): boolean {
    return this.#state.progress === Progress.Decided || this.#state.progress === Progress.Settled;
  }

  #apply(decision: Decision): Decision {
    // A stop counts after close(), too: `end` learns of a deletion.
    if (this.#isDecided() || this.alone || (this.#timer === undefined && !decision.stopTrain)) {
      return decision;
    }
    for (const { reason, message } of decision.warnings) {
      // Reasons that are newer than this client are all the same to it.
      const about = reason === WarningReason.UNRECOGNIZED ? message : reason;
      if (!this.#warned.has(about) && this.#warned.size < MOST_WARNINGS) {
        this.#warned.add(about);
        warn(message);
      }
    }
    this.#decision = decision;
    if (decision.stopTrain) {
      const deleted = decision.endReason === EndReason.END_REASON_JOB_DELETED;
      this.#note(deleted ? TrialEvent.Deleted : TrialEvent.Stopped);
      this.#stop.abort(decision);
      this.#stopHeartbeats();
      this.#stream?.close();
    } else {
      this.#note(TrialEvent.Answered);
      this.#beatEvery(decision.heartbeatInterval);
    }
    return decision;
  }
}

function epochOf(result: TrainingResult): number {
  return result.measurement?.epoch ?? 0;
}

/** Shows a warning to the trainer's user: Node.js prints it to stderr and emits `warning` on `process`. */
export function warn(message: string): void {
  process.emitWarning(message, "WattwiseWarning");
}

const REFUSALS = [
  InvalidJobSpecError,
  InvalidRequestError,
  InvalidResultError,
  JobDiffersError,
  JobNotFoundError,
  NoBatchSizeLeftError,
  NotPossibleNowError,
  TrialDeletedError,
  TrialNotFoundError,
];

/** Whether the request itself led to an error. After any other error, training continues. */
function isRefusal(error: unknown): boolean {
  return !(error instanceof WattwiseError) || REFUSALS.some((kind) => error instanceof kind);
}

/** Whether an error comes from the trainer's own configuration, so that no launch should go on with a fallback. */
export function isOfTrainer(error: unknown): boolean {
  const own = [ConfigurationError, UnauthenticatedError, PermissionDeniedError];
  const nothingLeft = error instanceof NoBatchSizeLeftError;
  return !nothingLeft && (isRefusal(error) || own.some((kind) => error instanceof kind));
}

/** The error of a server that could not answer: continue training. */
function asOutage(error: unknown): WattwiseError {
  const { message, status } = error as WattwiseError;
  return error instanceof ServerUnavailableError
    ? error
    : new ServerUnavailableError(message, { status, cause: error });
}
