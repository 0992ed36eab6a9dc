/** One StreamResults call: measurements and heartbeats out, decisions in. */

import type { ClientDuplexStream, ServiceError } from "@grpc/grpc-js";
import { fromServiceError, ServerError, type WattwiseError } from "./errors.js";
import type { StreamResultsRequest, StreamResultsResponse } from "./stubs/wattwise/v1/batch_size_optimizer.js";
import type { Decision, TrainingResult, TrialId } from "./stubs/wattwise/v1/trial.js";

/** A trial's open stream. Decisions wait in it until they are asked for, by one reader. */
export class ResultStream implements AsyncIterable<Decision> {
  readonly #call: ClientDuplexStream<StreamResultsRequest, StreamResultsResponse>;
  readonly #arrived: Decision[] = [];
  #ended = false;
  #failure: WattwiseError | undefined;
  #wake: () => void = () => {};

  /** Made by `Client.streamResults`. */
  constructor(call: ClientDuplexStream<StreamResultsRequest, StreamResultsResponse>, address: string) {
    this.#call = call;
    // A queue of its own rather than the call's iterator, which misses an error that comes before it is asked.
    call.on("data", ({ decision }: StreamResultsResponse) => {
      this.#arrived.push(present(decision, "decision"));
      this.#wake();
    });
    call.on("error", (error: ServiceError) => {
      this.#failure = fromServiceError(error, address);
    });
    // Comes after all data and after an error.
    call.on("end", () => {
      this.#ended = true;
      this.#wake();
    });
  }

  /** Sends a measurement; a decision will answer it. Nothing is sent on a stream that has ended. */
  report(result: TrainingResult): void {
    this.#send({ event: { $case: "result", value: result } });
  }

  /** Renews the trial's lease; it is not answered. */
  heartbeat(trial: TrialId): void {
    this.#send({ event: { $case: "heartbeat", value: { trial } } });
  }

  /**
   * Waits for the next decision: the answer to a measurement, or a stop that nobody asked for.
   *
   * @returns undefined once the server has ended the stream.
   * @throws WattwiseError if the stream ended with an error.
   */
  async next(): Promise<Decision | undefined> {
    while (this.#arrived.length === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    const decision = this.#arrived.shift();
    if (decision === undefined && this.#failure !== undefined) {
      throw this.#failure;
    }
    return decision;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Decision> {
    for (let decision = await this.next(); decision !== undefined; decision = await this.next()) {
      yield decision;
    }
  }

  /** Ends this side: the server answers what it has received and ends its own. */
  close(): void {
    this.#call.end();
  }

  /** Ends both sides at once. */
  cancel(): void {
    this.#call.cancel();
  }

  #send(request: StreamResultsRequest): void {
    if (!this.#ended && this.#call.writable) {
      this.#call.write(request);
    }
  }
}

/** A part of an answer that every Wattwise server gives. */
export function present<T>(part: T | undefined, name: string): T {
  if (part === undefined) {
    throw new ServerError(`the server's answer has no ${name}: is it a Wattwise server?`);
  }
  return part;
}
