/** The server's calls as methods, with deadlines, retries and typed errors. */

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type CallOptions as GrpcOptions,
  type ClientUnaryCall,
  connectivityState,
  Metadata,
  type ServiceError,
} from "@grpc/grpc-js";
import { type CallOptions, pauses, retrying } from "./backoff.js";
import { Credentials } from "./credentials.js";
import {
  ConfigurationError,
  DeadlineError,
  endedWithConnection,
  fromServiceError,
  JobNotFoundError,
  ServerUnavailableError,
  TrialDeletedError,
  WattwiseError,
} from "./errors.js";
import { checkDispatched, checkedDecision, checkedJob, checkedTrial, checkNextPage, present } from "./answers.js";
import { checkNumbers, ResultStream } from "./results.js";
import { type Link, Servers } from "./servers.js";
import { isOfTrainer, type TrainerReason, type TrialCalls, TrialSession, warn } from "./session.js";
import {
  type GetNextBatchSizeResponse,
  ImportTrialRequest,
  type ImportTrialResponse,
  type RegisterJobResponse,
} from "./stubs/wattwise/v1/batch_size_optimizer.js";
import { ErrorReason } from "./stubs/wattwise/v1/error_reason.js";
import { type Job, JobSpec, type PolicySpec } from "./stubs/wattwise/v1/job.js";
import { DeleteJobResponse, type SetTrialExcludedResponse } from "./stubs/wattwise/v1/job_control.js";
import {
  type GetJobResponse,
  type GetTrialResponse,
  type JobListing,
  JobOrder,
  ListJobsRequest,
  ListMeasurementsRequest,
  ListTrialsRequest,
  type WatchJobResponse,
} from "./stubs/wattwise/v1/job_reader.js";
import type { GetServerInfoResponse } from "./stubs/wattwise/v1/server_info.js";
import {
  type Decision,
  EndReason,
  type Measurement,
  type Monitor,
  TrainingResult,
  Trial,
  type TrialId,
} from "./stubs/wattwise/v1/trial.js";

/** A job's configuration. The server fills in the default of every field that is left out. */
export type JobOptions = Pick<JobSpec, "jobId" | "batchSizes" | "defaultBatchSize" | "target" | "gpus"> &
  Partial<JobSpec>;

export interface ClientOptions {
  /** Milliseconds that a call may take with all its retries; a call can override it. Default: 30000. */
  timeoutMs?: number;
  /** Whether calls are retried, with growing pauses, while the server is unavailable. Default: true. */
  retry?: boolean;
  /** The token and the certificates. Default: those of the `WATTWISE_*` variables. */
  credentials?: Credentials;
  /** The id of all calls in the server's log. Default: a random id per call. */
  callId?: string;
}

export interface LaunchOptions extends CallOptions {
  /**
   * One of the job's batch sizes, to train with if the server cannot be reached or no batch size is left to try. Default:
   * the launch throws the error.
   */
  fallback?: number;
}

/** A trial for `importTrial`. */
export type TrialToImport = Pick<ImportTrialRequest, "jobId" | "launchId" | "batchSize"> & Partial<ImportTrialRequest>;

type Unary<Q, A> = (
  request: Q,
  metadata: Metadata,
  options: Partial<GrpcOptions>,
  callback: (error: ServiceError | null, answer: A) => void,
) => ClientUnaryCall;

const TRAINER = ({ trainer }: Link) => trainer;
const READER = ({ reader }: Link) => reader;
const CONTROL = ({ control }: Link) => control;
const INFO = ({ info }: Link) => info;

const TIMEOUT_MS = 30_000;
const REPORT_TIMEOUT_MS = 10_000;
/** The time to connect to one of several servers before the next one is tried. */
const CONNECT_MS = 2_000;

/**
 * A connection to a Wattwise server, or to one of several on one database, opened by the first call. Calls throw
 * `ServerUnavailableError` if no server can be reached in time, and another `WattwiseError` if it refuses the call.
 */
export class Client implements TrialCalls {
  readonly address: string;
  readonly #timeoutMs: number;
  readonly #retry: boolean;
  readonly #callId: string | undefined;
  readonly #credentials: Credentials;
  readonly #servers: Servers;
  /** The jobs that were registered here: a trial must have one of the batch sizes. */
  readonly #specs = new Map<string, JobSpec>();
  /** Whether the last try of a call found no server, which was warned of. */
  #away = false;

  /**
   * @param address host and port of the server, such as "localhost:50051". Several servers are a list,
   *   "host1:50051,host2:50051", "ipv4:10.0.0.1:50051,10.0.0.2:50051" or "ipv6:[fd00::1]:50051,[fd00::2]:50051", or a name
   *   with several addresses, "dns:///name:50051". The client uses one, in an order drawn at random, and the next if that
   *   one cannot be reached.
   * @throws ConfigurationError if the address, the token or a certificate is invalid.
   */
  constructor(address: string, options: ClientOptions = {}) {
    this.address = address;
    this.#timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
    this.#retry = options.retry ?? true;
    this.#callId = options.callId;
    this.#credentials = options.credentials ?? Credentials.fromEnv();
    this.#servers = new Servers(address, this.#credentials);
  }

  /** Closes the connection. Calls in progress fail. */
  close(): void {
    this.#servers.close();
  }

  /**
   * Registers a job, requests its next trial and opens a session for it.
   *
   * With a `fallback`, it always returns a session: if there is no trial, the session trains without the server, stops at
   * its own target or last epoch, and imports the trial when it ends.
   */
  launch(job: JobOptions, options: LaunchOptions = {}): Promise<TrialSession> {
    return this.#launch(job, options);
  }

  /**
   * Yields the sessions of one trial after another, at most `maxTries`, until one reaches its target. Each trial is ended
   * when the loop continues.
   *
   * No further trial follows a training that was left before the decision to stop, or the deletion of the job; but one
   * follows if its trial was ended with `END_REASON_OUT_OF_MEMORY`. A trial ends with `END_REASON_ERROR` if its loop is
   * left by an exception or `break`, unless it was ended before that.
   */
  async *attempts(job: JobOptions, options: LaunchOptions & { maxTries: number }): AsyncGenerator<TrialSession> {
    let registered: JobSpec | undefined;
    for (let attempt = 0; attempt < options.maxTries; attempt++) {
      let trial: TrialSession;
      try {
        trial = await this.#launch(job, options, registered);
      } catch (error) {
        if (attempt > 0 && (error instanceof JobNotFoundError || error instanceof TrialDeletedError)) {
          return;
        }
        throw error;
      }
      let reason: TrainerReason = EndReason.END_REASON_ERROR;
      try {
        yield trial;
        reason = EndReason.END_REASON_COMPLETED;
      } finally {
        await trial.end(reason).catch((error: Error) => {
          if (!(error instanceof JobNotFoundError || error instanceof TrialDeletedError)) {
            warn(`the end of the trial could not be reported: ${error.message}`);
          }
        });
      }
      const decision = trial.decision?.stopTrain ? trial.decision : undefined;
      const outOfMemory = trial.endReason === EndReason.END_REASON_OUT_OF_MEMORY;
      if (decision?.targetReached || (decision === undefined && !outOfMemory)) {
        return;
      }
      // A job that was deleted must not be registered again.
      registered = trial.alone ? undefined : trial.spec;
    }
  }

  async #launch(job: JobOptions, options: LaunchOptions, registered?: JobSpec): Promise<TrialSession> {
    const { fallback, timeoutMs } = options;
    if (fallback !== undefined && !job.batchSizes.includes(fallback)) {
      throw new ConfigurationError(
        `the fallback ${fallback} is not one of the batch sizes ${job.batchSizes.join(", ")}`,
      );
    }
    try {
      const spec = registered ?? present((await this.registerJob(job, options)).job?.spec, "job");
      const launchId = randomUUID();
      const { trial } = await this.getNextBatchSize(job.jobId, { ...options, launchId });
      return this.openSession(present(trial, "trial"), { ...options, spec, job: JobSpec.fromPartial(job) });
    } catch (error) {
      if (fallback === undefined || isOfTrainer(error)) {
        throw error;
      }
      // The server may have dispatched a trial with another batch size for the first launch id, whose answer was lost.
      const trial = Trial.fromPartial({ id: { jobId: job.jobId, launchId: randomUUID() }, batchSize: fallback });
      const session = new TrialSession(this, trial, timeoutMs ?? REPORT_TIMEOUT_MS, { spec: JobSpec.fromPartial(job) });
      session.trainAlone(`training with the fallback batch size ${fallback}, because there is no trial`, error);
      return session;
    }
  }

  /**
   * Opens a session for a trial that was dispatched before. A report may take `timeoutMs` (default: 10000).
   *
   * With the job's `spec`, training stops at the target or the last epoch even while the server is away, and continues if
   * the server does not know the trial.
   */
  openSession(trial: Trial, options: CallOptions & { spec?: JobSpec; job?: JobSpec } = {}): TrialSession {
    return new TrialSession(this, trial, options.timeoutMs ?? REPORT_TIMEOUT_MS, options);
  }

  /** Creates the job, or confirms that the one under its id has the identical configuration. */
  async registerJob(job: JobOptions, options?: CallOptions): Promise<RegisterJobResponse> {
    const sent = JobSpec.fromPartial(job);
    const answer = await this.#call(TRAINER, (stub) => stub.registerJob, { job: sent }, options);
    const spec = checkedJob(answer, sent);
    this.#specs.set(present(spec.jobId, "job"), spec);
    return answer;
  }

  /**
   * Dispatches the next trial. Calls with the same `launchId` return the same trial; by default it is random.
   * With `resume`, the launch continues from a checkpoint: a trial that was preempted or lost is dispatched again.
   * `labels` say something about the launch to people who look at the trial; its host is among them unless they name one.
   */
  async getNextBatchSize(
    jobId: string,
    options?: CallOptions & { launchId?: string; resume?: boolean; labels?: Record<string, string> },
  ): Promise<GetNextBatchSizeResponse> {
    const { launchId, resume } = options ?? {};
    const request = {
      jobId,
      launchId: launchId ?? randomUUID(),
      resume: resume ?? false,
      unconnectedRanks: 0,
      labels: { host: hostname(), ...options?.labels },
    };
    const answer = await this.#call(TRAINER, (stub) => stub.getNextBatchSize, request, options);
    const trial = checkedTrial("GetNextBatchSize", answer.trial, request);
    const spec = this.#specs.get(jobId);
    if (spec !== undefined) {
      checkDispatched("GetNextBatchSize", trial, spec);
    }
    return answer;
  }

  /** Reports an epoch with the sums since the trial's first epoch. */
  async reportResult(
    result: Pick<TrainingResult, "trial"> & {
      measurement: Partial<Measurement> | undefined;
      monitor?: Monitor | undefined;
    },
    options?: CallOptions,
  ): Promise<Decision> {
    checkNumbers(result.measurement ?? {}, "result.measurement");
    const request = { result: TrainingResult.fromPartial(result) };
    const answer = await this.#call(TRAINER, (stub) => stub.reportResult, request, options);
    return checkedDecision(answer.decision);
  }

  /** Opens a stream for one trial, without deadline and retries. `launch` and `openSession` manage one for you. */
  streamResults(): ResultStream {
    const { target, trainer } = this.#servers.current();
    return new ResultStream(trainer.streamResults(this.#metadata(this.#newCallId())), target);
  }

  /** Renews a trial's lease and returns whether to continue. */
  async heartbeat(trial: TrialId, options?: CallOptions): Promise<Decision> {
    const answer = await this.#call(TRAINER, (stub) => stub.heartbeat, { trial }, options);
    return checkedDecision(answer.decision);
  }

  /** Ends a trial whose trainer exits. A trial that has ended before does not change. */
  async endTrial(trial: TrialId, reason: TrainerReason, options?: CallOptions): Promise<Trial> {
    const answer = await this.#call(TRAINER, (stub) => stub.endTrial, { trial, endReason: reason }, options);
    const { jobId, launchId, trialNumber: number } = trial;
    return checkedTrial("EndTrial", answer.trial, { jobId, launchId, number });
  }

  /** Returns the trial that the server has of a launch. This changes nothing on the server. */
  async lookupTrial(jobId: string, launchId: string, options?: CallOptions): Promise<Trial> {
    const request = { jobId, launchId };
    const answer = await this.#call(TRAINER, (stub) => stub.lookupTrial, request, options);
    return checkedTrial("LookupTrial", answer.trial, request);
  }

  /**
   * Records a trial, or the end of one, that could not be reported while it ran. Its `launchId` makes the call safe to
   * retry; the job must be registered.
   */
  async importTrial(trial: TrialToImport, options?: CallOptions): Promise<ImportTrialResponse> {
    trial.measurements?.forEach((measured, place) => checkNumbers(measured, `measurements[${place}]`, true));
    const request = ImportTrialRequest.fromPartial(trial);
    const answer = await this.#call(TRAINER, (stub) => stub.importTrial, request, options);
    checkedTrial("ImportTrial", answer.trial, request);
    return answer;
  }

  /** Returns what the server is, and what the caller's token allows. */
  getServerInfo(options?: CallOptions): Promise<GetServerInfoResponse> {
    return this.#call(INFO, (stub) => stub.getServerInfo, {}, options);
  }

  /** Returns one job, and what it knows about its batch sizes. */
  getJob(jobId: string, options?: CallOptions): Promise<GetJobResponse> {
    return this.#call(READER, (stub) => stub.getJob, { jobId }, options);
  }

  /** Iterates over all jobs, oldest first. */
  async *listJobs(filter: Partial<ListJobsRequest> = {}, options?: CallOptions): AsyncGenerator<JobListing> {
    const request = ListJobsRequest.fromPartial(filter);
    const seen = new Set([request.pageToken]);
    do {
      const page = await this.#call(READER, (stub) => stub.listJobs, request, options);
      checkNextPage("ListJobs", page.jobs.length, page.nextPageToken, seen);
      yield* page.jobs;
      request.pageToken = page.nextPageToken;
    } while (request.pageToken);
  }

  /** Iterates over a job's trials by number. */
  async *listTrials(
    jobId: string,
    filter: Partial<ListTrialsRequest> = {},
    options?: CallOptions,
  ): AsyncGenerator<Trial> {
    const request = ListTrialsRequest.fromPartial({ ...filter, jobId });
    const seen = new Set([request.pageToken]);
    do {
      const page = await this.#call(READER, (stub) => stub.listTrials, request, options);
      checkNextPage("ListTrials", page.trials.length, page.nextPageToken, seen);
      yield* page.trials;
      request.pageToken = page.nextPageToken;
    } while (request.pageToken);
  }

  /** Returns one trial with its power profile. */
  getTrial(trial: TrialId, options?: CallOptions): Promise<GetTrialResponse> {
    return this.#call(READER, (stub) => stub.getTrial, { trial }, options);
  }

  /** Iterates over a trial's measurements by epoch. */
  async *listMeasurements(
    trial: TrialId,
    filter: Partial<ListMeasurementsRequest> = {},
    options?: CallOptions,
  ): AsyncGenerator<Measurement> {
    const request = ListMeasurementsRequest.fromPartial({ ...filter, trial });
    const seen = new Set([request.pageToken]);
    do {
      const page = await this.#call(READER, (stub) => stub.listMeasurements, request, options);
      checkNextPage("ListMeasurements", page.measurements.length, page.nextPageToken, seen);
      yield* page.measurements;
      request.pageToken = page.nextPageToken;
    } while (request.pageToken);
  }

  /**
   * Deletes a job with its trials. Running trials are stopped. A missing job is an error unless `allowMissing` is set. A job
   * that was not registered at `createTime`, by default that of the job at the call, counts as missing.
   */
  async deleteJob(
    jobId: string,
    options?: CallOptions & { allowMissing?: boolean; createTime?: Date },
  ): Promise<DeleteJobResponse> {
    const request = { jobId, allowMissing: options?.allowMissing ?? false, createTime: options?.createTime };
    if (!request.createTime) {
      const filter = ListJobsRequest.fromPartial({ jobIdPrefix: jobId, order: JobOrder.JOB_ORDER_ID, pageSize: 1 });
      const { job } = (await this.#call(READER, (stub) => stub.listJobs, filter, options)).jobs[0] ?? {};
      if (job?.spec?.jobId !== jobId) {
        // A call without a time would delete a job that is registered from now on.
        if (request.allowMissing) return DeleteJobResponse.fromPartial({});
        throw new JobNotFoundError(`no job has the id ${JSON.stringify(jobId)}`, {
          reason: ErrorReason.ERROR_REASON_JOB_NOT_FOUND,
          status: "NOT_FOUND",
          metadata: { job_id: jobId },
        });
      }
      request.createTime = job.createTime;
    }
    return this.#call(CONTROL, (stub) => stub.deleteJob, request, options);
  }

  /** Begins the job's search again. Its trials stay in the history but no longer count. */
  async resetJob(jobId: string, options?: CallOptions): Promise<Job> {
    const request = { jobId, requestId: randomUUID() };
    return present((await this.#call(CONTROL, (stub) => stub.resetJob, request, options)).job, "job");
  }

  /** Excludes a trial from the job's search, or includes it again. */
  setTrialExcluded(trial: TrialId, excluded: boolean, options?: CallOptions): Promise<SetTrialExcludedResponse> {
    return this.#call(CONTROL, (stub) => stub.setTrialExcluded, { trial, excluded }, options);
  }

  /** Bans a batch size, so that the search does not choose it, or lifts its ban. */
  async setBatchSizeBanned(jobId: string, batchSize: number, banned: boolean, options?: CallOptions): Promise<Job> {
    const answer = await this.#call(CONTROL, (stub) => stub.setBatchSizeBanned, { jobId, batchSize, banned }, options);
    return present(answer.job, "job");
  }

  /** Pins a batch size, so that every launch gets it; `undefined` unpins it. */
  async setPinnedBatchSize(jobId: string, batchSize: number | undefined, options?: CallOptions): Promise<Job> {
    const answer = await this.#call(CONTROL, (stub) => stub.setPinnedBatchSize, { jobId, batchSize }, options);
    return present(answer.job, "job");
  }

  /** Readmits a batch size to the search: its failures, its memory and its pruning no longer count. */
  async readmitBatchSize(jobId: string, batchSize: number, options?: CallOptions): Promise<Job> {
    const request = { jobId, batchSize, requestId: randomUUID() };
    const answer = await this.#call(CONTROL, (stub) => stub.readmitBatchSize, request, options);
    return present(answer.job, "job");
  }

  /** Pauses the job's search, so that launches get the best known batch size, or resumes it. */
  async setJobPaused(jobId: string, paused: boolean, options?: CallOptions): Promise<Job> {
    const answer = await this.#call(CONTROL, (stub) => stub.setJobPaused, { jobId, paused }, options);
    return present(answer.job, "job");
  }

  /** Requests that the job's next launch gets the default batch size, to compare with. */
  async requestBaseline(jobId: string, options?: CallOptions): Promise<Job> {
    const request = { jobId, requestId: randomUUID() };
    const answer = await this.#call(CONTROL, (stub) => stub.requestBaseline, request, options);
    return present(answer.job, "job");
  }

  /** Gives one launch in so many the default batch size from now on, 2 or more; 0 ends that. */
  async setBaselineEvery(jobId: string, every: number, options?: CallOptions): Promise<Job> {
    const answer = await this.#call(CONTROL, (stub) => stub.setBaselineEvery, { jobId, every }, options);
    return present(answer.job, "job");
  }

  /** Changes the job's policy and its parameters; the search is rebuilt from the job's trials. */
  async setJobPolicy(jobId: string, policy: PolicySpec, options?: CallOptions): Promise<Job> {
    const answer = await this.#call(CONTROL, (stub) => stub.setJobPolicy, { jobId, policy }, options);
    return present(answer.job, "job");
  }

  /**
   * Yields a job's current state, then its newest state after it has changed, at most ten times a second. Throws
   * `JobNotFoundError` once it is deleted.
   */
  async *watchJob(jobId: string, options?: CallOptions): AsyncGenerator<WatchJobResponse> {
    const timeoutMs = options?.timeoutMs ?? this.#timeoutMs;
    const callId = this.#newCallId();
    let [waits, deadline] = [pauses(), performance.now() + timeoutMs];
    let endedBefore = false;
    for (;;) {
      const link = this.#servers.current();
      const call = link.reader.watchJob({ jobId }, this.#metadata(callId));
      let answered = false;
      try {
        for await (const state of call) {
          answered = true;
          yield state as WatchJobResponse;
          [waits, deadline] = [pauses(), performance.now() + timeoutMs];
        }
        return;
      } catch (error) {
        const failure = error instanceof WattwiseError ? error : fromServiceError(error as ServiceError, link.target);
        // The server may only have closed an old connection, also as the watch began: the next try shows whether it is lost.
        const ended = endedWithConnection(failure);
        if (failure.reason !== undefined || !(answered || (ended && !endedBefore))) {
          this.#note(link, failure);
        }
        endedBefore = ended && !answered;
        const pause = waits.next().value;
        if (!this.#retry || !failure.retryable || performance.now() + pause > deadline) {
          throw failure;
        }
        await sleep(pause);
      } finally {
        call.cancel();
      }
    }
  }

  #newCallId(): string {
    return this.#callId ?? randomUUID();
  }

  #metadata(callId: string): Metadata {
    const metadata = new Metadata();
    metadata.set("x-request-id", callId);
    const token = this.#credentials.token();
    if (token !== undefined) {
      metadata.set("authorization", `Bearer ${token}`);
    }
    return metadata;
  }

  #call<S, Q, A>(
    stub: (link: Link) => S,
    method: (stub: S) => Unary<Q, A>,
    request: Q,
    options?: CallOptions,
  ): Promise<A> {
    const callId = this.#newCallId();
    const attempt = async (deadline: number): Promise<A> => {
      const link = this.#servers.current();
      try {
        const answer = await this.#try(link, method(stub(link)).bind(stub(link)), request, callId, deadline);
        this.#away = false;
        return answer;
      } catch (error) {
        this.#note(link, error);
        throw error;
      }
    };
    const deadline = performance.now() + (options?.timeoutMs ?? this.#timeoutMs);
    return this.#retry ? retrying(attempt, deadline) : attempt(deadline);
  }

  #try<Q, A>(link: Link, method: Unary<Q, A>, request: Q, callId: string, deadline: number): Promise<A> {
    return new Promise((resolve, reject) => {
      let unconnected = false;
      // gRPC counts by the system clock, which may be changed between two attempts.
      const until = Date.now() + deadline - performance.now();
      const call = method(request, this.#metadata(callId), { deadline: until }, (error, answer) => {
        clearTimeout(timer);
        if (unconnected) {
          const message = `cannot reach a Wattwise server at ${link.target}: no connection within ${CONNECT_MS / 1000} s`;
          reject(new ServerUnavailableError(message, { status: "UNAVAILABLE", cause: error }));
        } else if (error === null) {
          resolve(answer);
        } else {
          reject(fromServiceError(error, link.target));
        }
      });
      const timer = setTimeout(() => {
        unconnected =
          this.#servers.several && link.trainer.getChannel().getConnectivityState(false) !== connectivityState.READY;
        if (unconnected) {
          call.cancel();
        }
      }, CONNECT_MS);
    });
  }

  /** Moves to another server if this one could not be reached, and warns once of each outage. */
  #note(link: Link, error: unknown): void {
    if (error instanceof ServerUnavailableError || error instanceof DeadlineError) {
      this.#servers.moveFrom(link, error.reason !== undefined);
      if (this.#retry && error.retryable && !this.#away) {
        this.#away = true;
        warn(`no answer from ${link.target}, calls are retried: ${error.message}`);
      }
    } else {
      this.#away = false;
    }
  }
}
