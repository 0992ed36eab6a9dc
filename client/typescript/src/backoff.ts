/** Waiting between attempts: exponential backoff with full jitter, under one deadline. */

import { setTimeout as sleep } from "node:timers/promises";
import { DeadlineError, WattwiseError } from "./errors.js";

const FIRST_MS = 100;
const LONGEST_MS = 3_000;

/** Waiting times without end, in milliseconds, each drawn from 0 to a bound that doubles. */
export function* pauses(): Generator<number, never> {
  for (let bound = FIRST_MS; ; bound = Math.min(LONGEST_MS, 2 * bound)) {
    yield Math.random() * bound;
  }
}

/**
 * Attempts something until it succeeds, fails for good, or the time is up.
 *
 * @param attempt is called with its deadline, in milliseconds since the epoch.
 * @param deadline of all attempts and the waiting between them.
 * @returns what the first successful attempt returned.
 * @throws the error of the last attempt; or, if that only ran out of time, of the one before, which knows the cause.
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
      if (!(error instanceof WattwiseError && error.retryable) || Date.now() + pause >= deadline) {
        throw error;
      }
      cause = error;
      await sleep(pause);
    }
  }
}
