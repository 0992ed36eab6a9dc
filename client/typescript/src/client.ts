/** The server's calls as methods: every one with a deadline, retries and errors that say what to do. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { type CallOptions, type Client as Stub, Metadata, type ServiceError } from "@grpc/grpc-js";
import { pauses, retrying } from "./backoff.js";
import { Credentials, isLoopback } from "./credentials.js";
import { ConfigurationError, fromServiceError, WattwiseError } from "./errors.js";
import { present, ResultStream } from "./results.js";
import { type Measurement, type TrainerReason, TrialSession } from "./session.js";
import {
  BatchSizeOptimizerClient,
  type GetNextBatchSizeResponse,
  type RegisterJobResponse,
} from "./stubs/wattwise/v1/batch_size_optimizer.js";
import { type Job, JobSpec } from "./stubs/wattwise/v1/job.js";
import {
  type DeleteJobResponse,
  type GetTrialResponse,
  JobAdminClient,
  ListJobsRequest,
  ListTrialsRequest,
} from "./stubs/wattwise/v1/job_admin.js";
import { type Decision, TrainingResult, type Trial, type TrialId } from "./stubs/wattwise/v1/trial.js";

/** A job as a trainer gives it; what is left out is the server's default. */
export type JobOptions = Pick<JobSpec, "jobIdPrefix" | "batchSizes" | "defaultBatchSize" | "gpu"> & Partial<JobSpec>;

export interface ClientOptions {
  /** Milliseconds that a call may take with all its retries, unless the call says otherwise; 30000 if left out. */
  timeoutMs?: number;
  /** Whether calls are repeated, with growing pauses, while the server is unavailable; true if left out. */
  retry?: boolean;
  /** The token and the certificates; what the `WATTWISE_*` variables say if left out. */
  credentials?: Credentials;
  /** What every call is named in the server's log; a fresh name for each if left out. */
  requestId?: string;
}

export interface OneCall {
  /** Milliseconds that this call may take with all its retries; the client's if left out. */
  timeoutMs?: number;
}

type Unary<Q, A> = (
  request: Q,
  metadata: Metadata,
  options: Partial<CallOptions>,
  callback: (error: ServiceError | null, answer: A) => void,
) => unknown;

const TIMEOUT_MS = 30_000;
const REPORT_TIMEOUT_MS = 10_000;

const CHANNEL = {
  // A server that vanished without a word is noticed within 40 seconds.
  "grpc.keepalive_time_ms": 30_000,
  "grpc.keepalive_timeout_ms": 10_000,
  // A server that is back is found within seconds, however long it was away.
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.max_reconnect_backoff_ms": 2_000,
};

/**
 * A connection to a Wattwise server, opened with the first call. Calls throw `ServerUnavailableError` if the server
 * cannot be reached in time, and otherwise the `WattwiseError` that stands for its refusal.
 */
export class Client {
  readonly address: string;
  readonly #timeoutMs: number;
  readonly #retry: boolean;
  readonly #requestId: string | undefined;
  readonly #credentials: Credentials;
  readonly #trainers: BatchSizeOptimizerClient;
  readonly #people: JobAdminClient;

  /**
   * @param address host and port of the server, such as "localhost:50051".
   * @throws ConfigurationError if the address, the token or a certificate cannot be used.
   */
  constructor(address: string, options: ClientOptions = {}) {
    this.address = checked(address);
    this.#timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
    this.#retry = options.retry ?? true;
    this.#requestId = options.requestId;
    this.#credentials = options.credentials ?? Credentials.fromEnv();
    // A proxy that the environment names cannot reach this machine's loopback, and must not see a token for it.
    const settings = isLoopback(address) ? { ...CHANNEL, "grpc.enable_http_proxy": 0 } : CHANNEL;
    const secure = this.#credentials.channel(address);
    this.#trainers = new BatchSizeOptimizerClient(address, secure, settings);
    this.#people = new JobAdminClient(address, secure, { channelOverride: this.#trainers.getChannel() });
  }

  /** Closes the connection; running calls fail. */
  close(): void {
    this.#trainers.close();
  }

  /** Registers a job, asks for its next trial and opens the line for that: all that comes before the first epoch. */
  async launch(job: JobOptions, options: OneCall = {}): Promise<TrialSession> {
    const spec = present((await this.registerJob(job, options)).job?.spec, "job");
    const { trial } = await this.getNextBatchSize(present(spec.jobId, "job id"), options);
    return this.follow(present(trial?.id, "trial"), present(spec.trialLeaseSeconds, "lease"), { ...options, spec });
  }

  /**
   * Opens the line for a trial that was dispatched before, with the lease that its job gives. A report may take
   * `timeoutMs`, 10000 if left out; with the job's `spec` a training ends by itself while the server is away.
   */
  follow(trial: TrialId, leaseSeconds: number, options: OneCall & { spec?: JobSpec } = {}): TrialSession {
    return new TrialSession(this, trial, leaseSeconds, options.timeoutMs ?? REPORT_TIMEOUT_MS, options.spec);
  }

  /** Creates the job, or confirms that the one under its id has the identical configuration. */
  registerJob(job: JobOptions, options?: OneCall): Promise<RegisterJobResponse> {
    // Named here and not by the server, so that a retry asks for the same job again.
    const jobId = job.jobId ?? `${job.jobIdPrefix}-${randomUUID().slice(0, 8)}`;
    const request = { job: JobSpec.fromPartial({ ...job, jobId }) };
    return this.#call(this.#trainers, this.#trainers.registerJob, request, options);
  }

  /**
   * Dispatches the next trial. Calls with the same `requestId` get the same trial; one is made up if it is left out.
   * With `resume` that trial is taken back if it was preempted or lost meanwhile: the launch goes on from a checkpoint.
   */
  getNextBatchSize(
    jobId: string,
    options?: OneCall & { requestId?: string; resume?: boolean },
  ): Promise<GetNextBatchSizeResponse> {
    const request = { jobId, requestId: options?.requestId || randomUUID(), resume: options?.resume ?? false };
    return this.#call(this.#trainers, this.#trainers.getNextBatchSize, request, options);
  }

  /** Reports one epoch's cumulative measurement. */
  async reportResult(measurement: Measurement & Pick<TrainingResult, "trial">, options?: OneCall): Promise<Decision> {
    const request = { result: TrainingResult.fromPartial(measurement) };
    const answer = await this.#call(this.#trainers, this.#trainers.reportResult, request, options);
    return present(answer.decision, "decision");
  }

  /** Opens one trial's stream; there is no deadline and no retry. `launch` and `follow` do the rest as well. */
  streamResults(): ResultStream {
    return new ResultStream(this.#trainers.streamResults(this.#metadata(this.#name())), this.address);
  }

  /** Renews a trial's lease and asks whether it may go on. */
  async heartbeat(trial: TrialId, options?: OneCall): Promise<Decision> {
    const answer = await this.#call(this.#trainers, this.#trainers.heartbeat, { trial }, options);
    return present(answer.decision, "decision");
  }

  /** Says that a trial's trainer is gone. One that is decided already is left as it is. */
  async endTrial(trial: TrialId, reason: TrainerReason, options?: OneCall): Promise<Trial> {
    const answer = await this.#call(this.#trainers, this.#trainers.endTrial, { trial, reason }, options);
    return present(answer.trial, "trial");
  }

  /** One job as it stands. */
  async getJob(jobId: string, options?: OneCall): Promise<Job> {
    return present((await this.#call(this.#people, this.#people.getJob, { jobId }, options)).job, "job");
  }

  /** All jobs, oldest first, page after page. */
  async *listJobs(filter: Partial<ListJobsRequest> = {}, options?: OneCall): AsyncGenerator<Job> {
    const request = ListJobsRequest.fromPartial(filter);
    do {
      const page = await this.#call(this.#people, this.#people.listJobs, request, options);
      yield* page.jobs;
      request.pageToken = page.nextPageToken;
    } while (request.pageToken);
  }

  /** A job's trials by number, page after page. */
  async *listTrials(jobId: string, filter: Partial<ListTrialsRequest> = {}, options?: OneCall): AsyncGenerator<Trial> {
    const request = ListTrialsRequest.fromPartial({ ...filter, jobId });
    do {
      const page = await this.#call(this.#people, this.#people.listTrials, request, options);
      yield* page.trials;
      request.pageToken = page.nextPageToken;
    } while (request.pageToken);
  }

  /** One trial with its measurements. */
  getTrial(trial: TrialId, options?: OneCall): Promise<GetTrialResponse> {
    return this.#call(this.#people, this.#people.getTrial, { trial }, options);
  }

  /** Deletes a job with its trials; those that run are told to stop. */
  deleteJob(jobId: string, options?: OneCall): Promise<DeleteJobResponse> {
    return this.#call(this.#people, this.#people.deleteJob, { jobId }, options);
  }

  /** A job's state now and its newest state after every change, until it is deleted: then `JobNotFoundError`. */
  async *watchJob(jobId: string, options?: OneCall): AsyncGenerator<Job> {
    const patience = options?.timeoutMs ?? this.#timeoutMs;
    const name = this.#name();
    let [waits, deadline] = [pauses(), Date.now() + patience];
    for (;;) {
      const call = this.#people.watchJob({ jobId }, this.#metadata(name));
      try {
        for await (const { job } of call) {
          yield present(job as Job | undefined, "job");
          [waits, deadline] = [pauses(), Date.now() + patience];
        }
        return;
      } catch (error) {
        const failure = error instanceof WattwiseError ? error : fromServiceError(error as ServiceError, this.address);
        const pause = waits.next().value;
        if (!this.#retry || !failure.retryable || Date.now() + pause > deadline) {
          throw failure;
        }
        await sleep(pause);
      } finally {
        call.cancel();
      }
    }
  }

  #name(): string {
    return this.#requestId ?? randomUUID();
  }

  #metadata(name: string): Metadata {
    const metadata = new Metadata();
    metadata.set("x-request-id", name);
    const token = this.#credentials.token();
    if (token !== undefined) {
      metadata.set("authorization", `Bearer ${token}`);
    }
    return metadata;
  }

  #call<Q, A>(stub: Stub, method: Unary<Q, A>, request: Q, options?: OneCall): Promise<A> {
    const name = this.#name();
    const attempt = (deadline: number): Promise<A> =>
      new Promise((resolve, reject) => {
        method.call(stub, request, this.#metadata(name), { deadline }, (error, answer) =>
          error === null ? resolve(answer) : reject(fromServiceError(error, this.address)),
        );
      });
    const deadline = Date.now() + (options?.timeoutMs ?? this.#timeoutMs);
    return this.#retry ? retrying(attempt, deadline) : attempt(deadline);
  }
}

/** The address if it can be one: a mistake in it would otherwise look like a server that is away. */
function checked(address: string): string {
  const port = Number(/^[^\s/]+:(\d{1,5})$/.exec(address)?.[1] ?? 0);
  if (/^(dns|ipv4|ipv6|unix):/.test(address) || (port > 0 && port < 65536)) {
    return address;
  }
  throw new ConfigurationError(
    `'${address}' is no address of a Wattwise server: write host:port, such as localhost:50051, without http://`,
  );
}
