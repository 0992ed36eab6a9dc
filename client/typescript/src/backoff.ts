/** Retries under one deadline: exponential backoff with full jitter. */

import { setTimeout as sleep } from "node:timers/promises";
import { DeadlineError, WattwiseError } from "./errors.js";

export interface CallOptions {
  /** Milliseconds that this call may take with all its retries. Default: the timeout of the client. */
  timeoutMs?: number;
}

const FIRST_MS = 100;
const LONGEST_MS = 3_000;

/** An endless sequence of waiting times in milliseconds, each drawn from 0 to a bound that doubles. */
export function* pauses(): Generator<number, never> {
  for (let bound = FIRST_MS; ; bound = Math.min(LONGEST_MS, 2 * bound)) {
    yield Math.random() * bound;
  }
}

/**
 * Repeats an attempt until it succeeds, a retry does not help, or the deadline has passed.
 *
 * @param attempt is called with its deadline.
 * @param deadline of all attempts and the pauses between them, in milliseconds of `performance.now()`.
 * @returns the result of the first successful attempt.
 * @throws the error of the last attempt; if that one timed out, the error of the attempt before, which shows the cause.
 */
export async function retrying<T>(attempt: (deadline: number) => Promise<T>, deadline: number): Promise<T> {
  const waits = pauses();
  let cause: WattwiseError | undefined;
  for (;;) {
    try {
      return await attempt(deadline);
    } catch (error) {
      if (error instanceof DeadlineError && cause !== undefined) {
        throw cause;
      }
      const pause = waits.next().value;
      if (!(error instanceof WattwiseError && error.retryable) || performance.now() + pause >= deadline) {
        throw error;
      }
      cause = error;
      await sleep(pause);
    }
  }
}
