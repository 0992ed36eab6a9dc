/** One scenario of a behaviour table, taken step by step through the client. */

import { setTimeout as sleep } from "node:timers/promises";
import {
  type Client,
  type Decision,
  type JobOptions,
  JobSpec,
  type RegisterJobResponse,
  type ResultStream,
  type TrainerReason,
  TrainingResult,
  type Trial,
  TrialId,
  WattwiseError,
} from "../src/index.js";
import { present } from "../src/results.js";
import { check, checkRefusal, type Fields, fromTable, Mismatch, only, snake } from "./compare.js";

export interface Scenario {
  name: string;
  job?: Fields;
  walk?: [number, number, boolean][];
  steps?: Fields[];
  job_then?: Fields;
}

/** What a step gives to its call. */
interface Given extends Fields {
  trial: string;
}

const PATIENCE_MS = 10_000;

const PARTS = ["name", "job", "walk", "steps", "job_then"];
const BESIDE = ["then", "error", "status", "fields", "metadata"];
const RESULT = ["trial", "epoch", "cost", "metric", "time", "monitor"];

/** What a step may be given; fields of messages where there is nothing else. */
const ARGUMENTS: Record<string, string[]> = {
  next: ["trial", "request_id", "job_id", "resume"],
  report: RESULT,
  heartbeat: ["trial"],
  end: ["trial", "reason"],
  register: Object.keys(JobSpec.create()).map(snake),
  get: ["trial"],
  job: ["job_id"],
  delete: [],
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
  target_metric: 0.9,
  max_epochs: 10,
  mab_seed: 1,
  gpu: { max_power_watts: 100, number_of_gpus: 1, gpu_model: "Test GPU" },
};

export class Replay {
  readonly #client: Client;
  readonly #scenario: Scenario;
  readonly #job: Fields;
  readonly #jobId: string;
  readonly #trials = new Map<string, TrialId>();
  readonly #streams = new Map<string, ResultStream>();
  readonly #calls: Record<string, (given: Given, then: Fields) => Promise<object | undefined>> = {
    next: (given) => this.#next(given),
    report: (given) => this.#report(given),
    heartbeat: (given) => this.#client.heartbeat(this.#trial(given.trial)),
    end: (given) => this.#client.endTrial(this.#trial(given.trial), given["reason"] as TrainerReason),
    register: (given) => this.#register(given),
    get: (given) => this.#get(given),
    job: (given) => this.#client.getJob(this.#jobOf(given)),
    delete: async () => (await this.#client.deleteJob(this.#jobId)).job,
    invent: (given) => this.#invent(given),
    until: (given, then) => this.#until(given, then),
    open: (given) => this.#open(given),
    send: (given) => this.#send(given),
    expect: (given) => this.#expect(given),
    close: (given) => this.#close(given),
  };

  /** @param own what makes the job's id this replay's own. */
  constructor(client: Client, scenario: Scenario, own: string) {
    this.#client = client;
    this.#scenario = scenario;
    this.#job = { ...DEFAULTS, ...scenario.job };
    this.#jobId = `${String(this.#job["job_id_prefix"])}-${own}`;
  }

  /** @throws Mismatch at the first step that is not as the table says. */
  async run(): Promise<void> {
    only(this.#scenario, PARTS);
    only(this.#scenario.job ?? {}, ARGUMENTS["register"] ?? []);
    try {
      await this.#register({});
      for (const [index, line] of (this.#scenario.walk ?? []).entries()) {
        await this.#follow(index + 1, ...line);
      }
      for (const [index, step] of (this.#scenario.steps ?? []).entries()) {
        await this.#take(index + 1, step);
      }
      if (this.#scenario.job_then !== undefined) {
        check(await this.#client.getJob(this.#jobId), this.#scenario.job_then);
      }
    } finally {
      this.#streams.forEach((stream) => stream.cancel());
    }
  }

  async #follow(number: number, size: number, cost: number, converged: boolean): Promise<void> {
    check(await this.#next({ trial: "walk" }), { trial_number: number, batch_size: size });
    const [epoch, metric] = converged ? [1, 0.95] : [this.#job["max_epochs"], 0.1];
    check(await this.#report({ trial: "walk", epoch, cost, metric }), { stop_train: true, converged });
  }

  async #take(number: number, step: Fields): Promise<void> {
    const name = Object.keys(step).find((key) => !BESIDE.includes(key)) ?? "";
    try {
      only(step, [name, ...BESIDE]);
      only((step[name] ?? {}) as Fields, ARGUMENTS[name] ?? []);
      const call = this.#calls[name];
      if (call === undefined) {
        throw new Mismatch("is not a step that this runner knows");
      }
      await compared(() => call(step[name] as Given, (step["then"] ?? {}) as Fields), step);
    } catch (error) {
      throw new Mismatch(`step ${number}, ${name}: ${(error as Error).message}`, { cause: error });
    }
  }

  async #next(given: Given): Promise<Trial> {
    const answer = await this.#client.getNextBatchSize(this.#jobOf(given), {
      requestId: (given["request_id"] as string | undefined) ?? "",
      resume: given["resume"] === true,
    });
    if (!answer.reason) {
      throw new Mismatch("says no reason");
    }
    const trial = present(answer.trial, "trial");
    this.#trials.set(given.trial, present(trial.id, "id"));
    return trial;
  }

  #report(given: Given): Promise<Decision> {
    return this.#client.reportResult(this.#result(given));
  }

  #register(given: Fields): Promise<RegisterJobResponse> {
    return this.#client.registerJob(fromTable({ ...this.#job, ...given, job_id: this.#jobId }) as JobOptions);
  }

  async #get(given: Given): Promise<Trial> {
    return present((await this.#client.getTrial(this.#trial(given.trial))).trial, "trial");
  }

  async #invent(given: Given): Promise<undefined> {
    const { trial, like, ...others } = given;
    this.#trials.set(trial, { ...this.#trial(like as string), ...(fromTable(others) as Partial<TrialId>) });
  }

  async #until(given: Given, then: Fields): Promise<Trial> {
    const deadline = Date.now() + PATIENCE_MS;
    for (;;) {
      if (given["heartbeat"] !== undefined) {
        await this.#client.heartbeat(this.#trial(given["heartbeat"] as string));
      }
      const trial = await this.#get(given);
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

  async #open(given: Given): Promise<undefined> {
    this.#streams.set(given.trial, this.#client.streamResults());
    return this.#send(given);
  }

  async #send(given: Given): Promise<undefined> {
    const stream = this.#stream(given);
    if ("epoch" in given) {
      stream.report(this.#result(given));
    } else {
      stream.heartbeat(this.#trial(given.trial));
    }
  }

  async #expect(given: Given): Promise<Decision> {
    const decision = await inTime(this.#stream(given).next());
    if (decision === undefined) {
      throw new Mismatch("the stream ended");
    }
    return decision;
  }

  async #close(given: Given): Promise<undefined> {
    this.#stream(given).close();
    const decision = await inTime(this.#stream(given).next());
    if (decision !== undefined) {
      throw new Mismatch(`one more decision came: ${decision.message}`);
    }
  }

  #result(given: Given): TrainingResult {
    const { trial, epoch, cost, time, ...others } = given;
    const named = { timeSeconds: time ?? 1, energyJoules: cost, currentEpoch: epoch, trial: this.#trial(trial) };
    return TrainingResult.fromPartial({ ...others, ...named } as Partial<TrainingResult>);
  }

  #jobOf(given: Given): string {
    return (given["job_id"] ?? this.#jobId) as string;
  }

  #trial(name: string): TrialId {
    return present(this.#trials.get(name), name);
  }

  #stream(given: Given): ResultStream {
    return present(this.#streams.get(given.trial), given.trial);
  }
}

async function compared(call: () => Promise<object | undefined>, step: Fields): Promise<void> {
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
  throw new Mismatch(`was not refused with ${String(step["error"])}`);
}

async function inTime<T>(awaited: Promise<T>): Promise<T> {
  const timer = new AbortController();
  const late = sleep(PATIENCE_MS, undefined, { signal: timer.signal }).then(() => {
    throw new Mismatch(`nothing came within ${PATIENCE_MS} ms`);
  });
  try {
    return await Promise.race([awaited, late]);
  } finally {
    late.catch(() => {});
    timer.abort();
  }
}
