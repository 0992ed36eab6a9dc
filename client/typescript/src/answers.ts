/**
 * Checks of what a server answers: that it is complete, is about what was asked, and has usable numbers and texts. A server
 * may be faulty, outdated, another one, or hostile. If an answer fails a check, the call has failed.
 */

import { InvalidAnswerError, shown } from "./errors.js";
import type { RegisterJobResponse } from "./stubs/wattwise/v1/batch_size_optimizer.js";
import { JobSpec } from "./stubs/wattwise/v1/job.js";
import type { Decision, Trial, TrialWarning } from "./stubs/wattwise/v1/trial.js";

/** The warnings that are shown of one trial; there are fewer reasons for them. */
export const MOST_WARNINGS = 20;
/** The pages of one list. */
const MOST_PAGES = 100_000;
const LONGEST_TOKEN = 8192;
const LEAST_LEASE = 1;

/** Throws unless something holds. */
export function check(holds: boolean, call: string, fault: string): asserts holds {
  if (!holds) {
    throw new InvalidAnswerError(shown(`the server gave an invalid answer to ${call}: ${fault}`));
  }
}

/** Returns a part of an answer that every Wattwise server sets. */
export function present<T>(part: T | undefined, name: string): T {
  if (part === undefined) {
    throw new InvalidAnswerError(
      `the server gave an invalid answer, which has no ${name}: is the address that of a Wattwise server?`,
    );
  }
  return part;
}

/** The job of an answer: it must have the configuration that was sent, apart from its policy. */
export function checkedJob(answer: RegisterJobResponse, sent: JobSpec): JobSpec {
  const call = "RegisterJob";
  const spec = present(answer.job?.spec, "job");
  const unset = JobSpec.fromPartial({});
  for (const [name, value] of Object.entries(sent) as [keyof JobSpec, unknown][]) {
    // Unset fields of the rule have their defaults in the answer.
    if (name !== "policy" && name !== "earlyStopping" && !equal(value, unset[name])) {
      check(equal(spec[name], value), call, `its job has another ${name} than the job that was registered`);
    }
  }
  const rule = sent.earlyStopping?.rule?.$case;
  const same = rule === undefined || rule === spec.earlyStopping?.rule?.$case;
  check(same, call, "its job has another earlyStopping than the job that was registered");
  const { trialLeaseSeconds: lease = 0, maxEpochs = 1, target } = spec;
  check(lease === 0 || (lease >= LEAST_LEASE && Number.isFinite(lease)), call, `its job has the lease ${lease} s`);
  check(maxEpochs >= 1, call, `its job has maxEpochs ${maxEpochs}`);
  check(!Number.isNaN(target?.value), call, "its job has the target NaN");
  return spec;
}

/** The order of batch sizes does not matter. */
function equal(one: unknown, other: unknown): boolean {
  return canonical(one) === canonical(other);
}

function canonical(value: unknown): string | undefined {
  const plain = Array.isArray(value) ? [...value].sort() : value;
  return JSON.stringify(plain, (_, part: unknown) =>
    typeof part === "bigint" || typeof part === "number" ? String(part) : part,
  );
}

/** What a trial must be; without a launch id it may belong to any launch, without a number it may have any. */
export interface Asked {
  jobId: string;
  launchId?: string | undefined;
  number?: number;
}

/** The trial of an answer: the one that was asked for. */
export function checkedTrial(call: string, found: Trial | undefined, asked: Asked): Trial {
  const trial = present(found, "trial");
  const id = present(trial.id, "trial");
  check(id.jobId === asked.jobId, call, `its trial is of job '${id.jobId.slice(0, 100)}', not '${asked.jobId}'`);
  check(
    id.launchId !== "" && (!asked.launchId || id.launchId === asked.launchId),
    call,
    "its trial belongs to another launch",
  );
  check(!asked.number || id.trialNumber === asked.number, call, `its trial has the number ${id.trialNumber}`);
  check(trial.batchSize > 0, call, `its trial has the batch size ${trial.batchSize}`);
  const { epoch = 0, timeSeconds = 0, energyJoules = 0 } = trial.newest ?? {};
  check(epoch >= 0, call, `its trial has the epoch ${epoch}`);
  for (const value of [timeSeconds, energyJoules]) {
    check(value >= 0 && Number.isFinite(value), call, `its trial has the time or the energy ${value}`);
  }
  trial.reason = shown(trial.reason);
  if (trial.decisionMessage !== undefined) {
    trial.decisionMessage = shown(trial.decisionMessage);
  }
  shorten(trial.warnings);
  return trial;
}

/** Throws unless a job lists the batch size of its trial. */
export function checkDispatched(call: string, { id, batchSize: size }: Trial, { batchSizes }: JobSpec): void {
  const sizes = batchSizes.join(", ");
  check(batchSizes.includes(size), call, `its trial has the batch size ${size}, which is not one of ${sizes}`);
  check((id?.trialNumber ?? 0) > 0, call, `its trial has the number ${id?.trialNumber}`);
}

/** The decision of an answer. */
export function checkedDecision(found: Decision | undefined): Decision {
  const decision = present(found, "decision");
  decision.message = shown(decision.message);
  shorten(decision.warnings);
  return decision;
}

function shorten(warnings: TrialWarning[]): void {
  warnings.splice(MOST_WARNINGS);
  for (const warning of warnings) {
    warning.field = shown(warning.field);
    warning.message = shown(warning.message);
  }
}

/** Throws if the pages of a list may never end; notes the next page otherwise. */
export function checkNextPage(call: string, items: number, token: string, seen: Set<string>): void {
  if (!token) {
    return;
  }
  check(token.length <= LONGEST_TOKEN, call, "its page token is too long");
  check(items > 0, call, "it is an empty page of more");
  check(!seen.has(token), call, "its next page is one of those before");
  check(seen.size < MOST_PAGES, call, `it has more than ${MOST_PAGES} pages`);
  seen.add(token);
}
