/** Replays one scenario of a behaviour table through the client. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type Client,
  type Decision,
  ImportTrialRequest,
  type ImportTrialResponse,
  type JobOptions,
  JobSpec,
  Measurement,
  PolicySpec,
  type RegisterJobResponse,
  type ResultStream,
  type TrainerReason,
  TrainingResult,
  type Trial,
  TrialId,
  TrialOrigin,
  WattwiseError,
} from "../src/index.js";
import { present } from "../src/answers.js";
import { check, checkKeys, checkRefusal, type Fields, fromTable, Mismatch, snake } from "./compare.js";

export interface Scenario {
  name: string;
  job?: Fields;
  walk?: [number, number, boolean][];
  steps?: Fields[];
  job_then?: Fields;
}

/** The arguments of a step. */
interface Arguments extends Fields {
  trial: string;
}

const TIMEOUT_MS = 10_000;

const SCENARIO_KEYS = ["name", "job", "walk", "steps", "job_then"];
const EXPECTATIONS = ["then", "error", "status", "fields", "metadata"];
const RESULT = ["trial", "epoch", "cost", "metric", "time", "monitor", "computed", "power_setting"];
const IMPORT = ["launch_id", "batch_size", "measurements", "end_reason", "monitor"];

/** The arguments that each step takes. */
const ARGUMENTS: Record<string, string[]> = {
  next: ["trial", "launch_id", "job_id", "resume"],
  report: RESULT,
  heartbeat: ["trial"],
  end: ["trial", "reason"],
  register: Object.keys(JobSpec.create()).map(snake),
  get: ["trial"],
  job: ["job_id"],
  details: ["job_id"],
  delete: [],
  import: ["trial", "job_id", ...IMPORT],
  reset: ["job_id"],
  exclude: ["trial", "excluded"],
  ban: ["job_id", "batch_size", "banned"],
  pin: ["job_id", "batch_size"],
  readmit: ["job_id", "batch_size"],
  pause: ["job_id", "paused"],
  baseline: ["job_id"],
  baseline_every: ["job_id", "every"],
  set_policy: ["job_id", "policy"],
  lookup: ["trial", "launch_id", "job_id"],
  invent: ["trial", "like", ...Object.keys(TrialId.create()).map(snake)],
  until: ["trial", "heartbeat"],
  open: ["trial"],
  send: RESULT,
  expect: ["trial"],
  close: ["trial"],
};

const DEFAULTS: Fields = {
  job_id_prefix: "scenario",
  batch_sizes: [8, 16, 32, 64],
  default_batch_size: 16,
  eta_knob: 1,
  target: { value: 0.9, direction: "DIRECTION_HIGHER_IS_BETTER" },
  max_epochs: 10,
  policy: { pruning_gts: { seed: 1 } },
  gpus: [{ gpu_model: "Test GPU", count: 1, max_power_watts_per_gpu: 100 }],
};

export class Replay {
  readonly #client: Client;
  readonly #scenario: Scenario;
  readonly #job: Fields;
  readonly #jobId: string;
  readonly #trials = new Map<string, TrialId>();
  readonly #streams = new Map<string, ResultStream>();
  readonly #calls: Record<string, (args: Arguments, then: Fields) => Promise<object | undefined>> = {
    next: (args) => this.#next(args),
    report: (args) => this.#report(args),
    heartbeat: (args) => this.#client.heartbeat(this.#trial(args.trial)),
    end: (args) => this.#client.endTrial(this.#trial(args.trial), args["reason"] as TrainerReason),
    register: (args) => this.#register(args),
    get: (args) => this.#get(args),
    job: async (args) => (await this.#client.getJob(this.#jobIdOf(args))).job,
    details: async (args) => (await this.#client.getJob(this.#jobIdOf(args))).details,
    delete: async () => (await this.#client.deleteJob(this.#jobId)).job,
    import: (args) => this.#import(args),
    lookup: (args) => this.#lookup(args),
    reset: (args) => this.#client.resetJob(this.#jobIdOf(args)),
    exclude: (args) => this.#client.setTrialExcluded(this.#trial(args.trial), args["excluded"] === true),
    ban: (args) =>
      this.#client.setBatchSizeBanned(this.#jobIdOf(args), args["batch_size"] as number, args["banned"] as boolean),
    pin: (args) => this.#client.setPinnedBatchSize(this.#jobIdOf(args), args["batch_size"] as number | undefined),
    readmit: (args) => this.#client.readmitBatchSize(this.#jobIdOf(args), args["batch_size"] as number),
    pause: (args) => this.#client.setJobPaused(this.#jobIdOf(args), args["paused"] === true),
    baseline: (args) => this.#client.requestBaseline(this.#jobIdOf(args)),
    baseline_every: (args) => this.#client.setBaselineEvery(this.#jobIdOf(args), args["every"] as number),
    set_policy: (args) => this.#client.setJobPolicy(this.#jobIdOf(args), policyOf(args)),
    invent: (args) => this.#invent(args),
    until: (args, then) => this.#until(args, then),
    open: (args) => this.#open(args),
    send: (args) => this.#send(args),
    expect: (args) => this.#expect(args),
    close: (args) => this.#close(args),
  };

  /** @param suffix makes the job's id unique. */
  constructor(client: Client, scenario: Scenario, suffix: string) {
    this.#client = client;
    this.#scenario = scenario;
    this.#job = { ...DEFAULTS, ...scenario.job };
    this.#jobId = `${String(this.#job["job_id_prefix"])}-${suffix}`;
  }

  /** @throws Mismatch at the first difference. */
  async run(): Promise<void> {
    checkKeys(this.#scenario, SCENARIO_KEYS);
    checkKeys(this.#scenario.job ?? {}, ARGUMENTS["register"] ?? []);
    try {
      await this.#register({});
      for (const [index, line] of (this.#scenario.walk ?? []).entries()) {
        await this.#replayLine(index + 1, ...line);
      }
      for (const [index, step] of (this.#scenario.steps ?? []).entries()) {
        await this.#replayStep(index + 1, step);
      }
      if (this.#scenario.job_then !== undefined) {
        check(present((await this.#client.getJob(this.#jobId)).job, "job"), this.#scenario.job_then);
      }
    } finally {
      this.#streams.forEach((stream) => stream.cancel());
    }
  }

  async #replayLine(number: number, size: number, cost: number, converged: boolean): Promise<void> {
    check(await this.#next({ trial: "walk" }), { trial_number: number, batch_size: size });
    const [epoch, metric] = converged ? [1, 0.95] : [this.#job["max_epochs"], 0.1];
    check(await this.#report({ trial: "walk", epoch, cost, metric }), { stop_train: true, converged });
  }

  async #replayStep(number: number, step: Fields): Promise<void> {
    const name = Object.keys(step).find((key) => !EXPECTATIONS.includes(key)) ?? "";
    try {
      checkKeys(step, [name, ...EXPECTATIONS]);
      checkKeys((step[name] ?? {}) as Fields, ARGUMENTS[name] ?? []);
      const call = this.#calls[name];
      if (call === undefined) {
        throw new Mismatch("unknown to this runner");
      }
      await callAndCompare(() => call(step[name] as Arguments, (step["then"] ?? {}) as Fields), step);
    } catch (error) {
      throw new Mismatch(`step ${number}, ${name}: ${(error as Error).message}`, { cause: error });
    }
  }

  async #next(args: Arguments): Promise<Trial> {
    const answer = await this.#client.getNextBatchSize(this.#jobIdOf(args), {
      launchId: (args["launch_id"] as string | undefined) ?? randomUUID(),
      resume: args["resume"] === true,
    });
    const trial = present(answer.trial, "trial");
    if (!trial.reason && trial.origin !== TrialOrigin.TRIAL_ORIGIN_IMPORTED) {
      throw new Mismatch("has no reason");
    }
    this.#trials.set(args.trial, present(trial.id, "id"));
    return trial;
  }

  #report(args: Arguments): Promise<Decision> {
    return this.#client.reportResult(this.#result(args));
  }

  #register(changed: Fields): Promise<RegisterJobResponse> {
    return this.#client.registerJob(fromTable({ ...this.#job, ...changed, job_id: this.#jobId }) as JobOptions);
  }

  async #get(args: Arguments): Promise<Trial> {
    return present((await this.#client.getTrial(this.#trial(args.trial))).trial, "trial");
  }

  async #import(args: Arguments): Promise<ImportTrialResponse> {
    const { trial, measurements, ...others } = args;
    const measured = (measurements as [number, number, number][]).map(([epoch, energyJoules, metric]) =>
      Measurement.fromPartial({ epoch, timeSeconds: 1, energyJoules, metric }),
    );
    const named = { ...(fromTable(others) as object), jobId: this.#jobIdOf(args), measurements: measured };
    const answer = await this.#client.importTrial(ImportTrialRequest.fromPartial(named));
    this.#trials.set(trial, present(answer.trial?.id, "id"));
    return answer;
  }

  async #lookup(args: Arguments): Promise<Trial> {
    const trial = await this.#client.lookupTrial(this.#jobIdOf(args), args["launch_id"] as string);
    this.#trials.set(args.trial, present(trial.id, "id"));
    return trial;
  }

  async #invent(args: Arguments): Promise<undefined> {
    const { trial, like, ...others } = args;
    this.#trials.set(trial, { ...this.#trial(like as string), ...(fromTable(others) as Partial<TrialId>) });
  }

  async #until(args: Arguments, then: Fields): Promise<Trial> {
    const deadline = Date.now() + TIMEOUT_MS;
    for (;;) {
      if (args["heartbeat"] !== undefined) {
        await this.#client.heartbeat(this.#trial(args["heartbeat"] as string));
      }
      const trial = await this.#get(args);
      try {
        check(trial, then);
        return trial;
      } catch (error) {
        if (Date.now() > deadline) {
          throw error;
        }
      }
      await sleep(50);
    }
  }

  async #open(args: Arguments): Promise<undefined> {
    this.#streams.set(args.trial, this.#client.streamResults());
    return this.#send(args);
  }

  async #send(args: Arguments): Promise<undefined> {
    const stream = this.#stream(args);
    if ("epoch" in args) {
      stream.report(this.#result(args));
    } else {
      stream.heartbeat(this.#trial(args.trial));
    }
  }

  async #expect(args: Arguments): Promise<Decision> {
    const decision = await withTimeout(this.#stream(args).next());
    if (decision === undefined) {
      throw new Mismatch("the stream ended");
    }
    return decision;
  }

  async #close(args: Arguments): Promise<undefined> {
    this.#stream(args).close();
    const decision = await withTimeout(this.#stream(args).next());
    if (decision !== undefined) {
      throw new Mismatch(`an unexpected decision arrived: ${decision.message}`);
    }
  }

  #result(args: Arguments): TrainingResult {
    const { trial, cost, time, monitor, ...others } = args;
    const sums = { timeSeconds: time ?? 1, energyJoules: cost };
    const measurement = { ...(fromTable(others) as object), ...sums };
    const result = { trial: this.#trial(trial), measurement, ...(fromTable({ monitor }) as object) };
    return TrainingResult.fromPartial(result as Partial<TrainingResult>);
  }

  #jobIdOf(args: Arguments): string {
    return (args["job_id"] ?? this.#jobId) as string;
  }

  #trial(name: string): TrialId {
    return present(this.#trials.get(name), name);
  }

  #stream(args: Arguments): ResultStream {
    return present(this.#streams.get(args.trial), args.trial);
  }
}

async function callAndCompare(call: () => Promise<object | undefined>, step: Fields): Promise<void> {
  if (!("error" in step)) {
    const message = await call();
    check(message ?? {}, (step["then"] ?? {}) as Fields);
    return;
  }
  try {
    await call();
  } catch (error) {
    if (!(error instanceof WattwiseError)) {
      throw error;
    }
    checkRefusal(error, step);
    return;
  }
  throw new Mismatch(`did not fail with ${String(step["error"])}`);
}

async function withTimeout<T>(promise: Promise<T>): Promise<T> {
  const timer = new AbortController();
  const late = sleep(TIMEOUT_MS, undefined, { signal: timer.signal }).then(() => {
    throw new Mismatch(`no message within ${TIMEOUT_MS} ms`);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    late.catch(() => {});
    timer.abort();
  }
}

function policyOf(args: Fields): PolicySpec {
  const { policy } = fromTable({ policy: args["policy"] }) as { policy: object };
  return PolicySpec.fromPartial(policy);
}
