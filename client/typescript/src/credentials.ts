/** How a client shows who it is, and whom it believes. */

import { X509Certificate } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { isIP } from "node:net";
import { createSecureContext } from "node:tls";
import { type ChannelCredentials, credentials as grpc } from "@grpc/grpc-js";
import { ConfigurationError } from "./errors.js";

/** A token, and what TLS needs. What is left out is not used. */
export interface CredentialOptions {
  /** What `wattwise token create` printed; never logged. */
  token?: string | undefined;
  /** File that holds the token alone; read again when it changes. A token takes the place of the file. */
  tokenFile?: string | undefined;
  /** Whether to talk TLS; unset: if any file below is given. */
  tls?: boolean | undefined;
  /** PEM file of the authorities that the server's certificate may be of; unset: Node's list of public ones. */
  tlsCa?: string | undefined;
  /** PEM file of the client's certificate, for a server that asks for one. */
  tlsCert?: string | undefined;
  /** PEM file of its private key, without a passphrase. */
  tlsKey?: string | undefined;
  /** Send the token even where it can be read on the way: without TLS to another machine. */
  insecure?: boolean | undefined;
}

/** Nothing of it is read before `channel` or `token` is asked for; nothing of it shows in logs. */
export class Credentials {
  readonly #options: CredentialOptions;
  #seen = "";
  #token: string | undefined;

  constructor(options: CredentialOptions = {}) {
    this.#options = options;
  }

  /** What `WATTWISE_TOKEN`, `_TOKEN_FILE`, `_TLS`, `_TLS_CA`, `_TLS_CERT`, `_TLS_KEY` and `_INSECURE` say. */
  static fromEnv(variables: NodeJS.ProcessEnv = process.env): Credentials {
    const given = (name: string): string | undefined => variables[`WATTWISE_${name}`] || undefined;
    return new Credentials({
      token: given("TOKEN"),
      tokenFile: given("TOKEN_FILE"),
      tls: yesOrNo("TLS", given("TLS")),
      tlsCa: given("TLS_CA"),
      tlsCert: given("TLS_CERT"),
      tlsKey: given("TLS_KEY"),
      insecure: yesOrNo("INSECURE", given("INSECURE")),
    });
  }

  /**
   * What gRPC opens a channel to an address with.
   *
   * @throws ConfigurationError if a file cannot be used, or others could read the token on the way.
   */
  channel(address: string): ChannelCredentials {
    const { token, tokenFile, insecure } = this.#options;
    const tls = this.#usesTls();
    if ((token || tokenFile) && !tls && !insecure && !isLoopback(address)) {
      throw new ConfigurationError(
        `the token is not sent to ${address} in clear, where others could read it: turn TLS on (WATTWISE_TLS=1 or ` +
          "tls: true), or spell out that nobody else is on the way (WATTWISE_INSECURE=1 or insecure: true)",
      );
    }
    // Asked for at once, so that a token that cannot be used is told of before the first call.
    this.token();
    return tls ? this.#secure() : grpc.createInsecure();
  }

  /**
   * The token that a call carries, if there is one; while its file is missing or spoilt, as it was before.
   *
   * @throws ConfigurationError if there never was a usable one.
   */
  token(): string | undefined {
    const { token, tokenFile } = this.#options;
    if (token) {
      return usable(token, "the token");
    }
    if (tokenFile) {
      this.#readAgain(tokenFile);
    }
    return this.#token;
  }

  #readAgain(file: string): void {
    const found = statSync(file, { throwIfNoEntry: false });
    const seen = found === undefined ? "" : `${found.mtimeMs} ${found.size} ${found.ino}`;
    if (this.#token !== undefined && seen === this.#seen) {
      return;
    }
    try {
      this.#token = usable(read(file, "token file").toString("latin1"), `what ${file} holds`);
      this.#seen = seen;
    } catch (error) {
      if (this.#token === undefined) {
        throw error;
      }
    }
  }

  #usesTls(): boolean {
    const { tls, tlsCa, tlsCert, tlsKey } = this.#options;
    const files = Boolean(tlsCa || tlsCert || tlsKey);
    if (files && tls === false) {
      throw new ConfigurationError("TLS is off and a file for it is given: leave one of the two out");
    }
    if (Boolean(tlsCert) !== Boolean(tlsKey)) {
      throw new ConfigurationError("a certificate and its key go together: give tlsCert and tlsKey, or neither");
    }
    return tls ?? files;
  }

  #secure(): ChannelCredentials {
    const { tlsCa, tlsCert, tlsKey } = this.#options;
    const ca = tlsCa ? read(tlsCa, "tlsCa") : null;
    const cert = tlsCert ? read(tlsCert, "tlsCert") : null;
    const key = tlsKey ? read(tlsKey, "tlsKey") : null;
    check(() => ca && new X509Certificate(ca), `${tlsCa} (tlsCa) holds no certificate in PEM`);
    check(
      () => cert && key && createSecureContext({ cert, key }),
      `${tlsCert} (tlsCert) and ${tlsKey} (tlsKey) are no certificate and its key, both in PEM and the key without a ` +
        "passphrase; give the two that were made together",
    );
    return grpc.createSsl(ca, key, cert);
  }
}

/** Whether what is sent to an address stays on this machine: localhost, 127.0.0.0/8, ::1 or a Unix socket. */
export function isLoopback(address: string): boolean {
  if (/^unix(-abstract)?:/.test(address)) {
    return true;
  }
  // A list of addresses, or a name server to ask, is none of these, whatever it begins with.
  const found = /^(?:(?:dns|ipv4|ipv6):(?:\/\/\/)?)?(?:\[([^\][]+)\]|([^\][:,/]+))(?::\w+)?$/.exec(address);
  const host = (found?.[1] ?? found?.[2] ?? "").toLowerCase();
  return host === "localhost" || (isIP(host) === 4 && host.startsWith("127.")) || host === "::1";
}

function usable(token: string, what: string): string {
  const trimmed = token.trim();
  if (!/^[A-Za-z0-9._~+/=-]+$/.test(trimmed)) {
    throw new ConfigurationError(
      `${what} cannot be a token: it is empty, or has blanks or other signs in it; copy it again`,
    );
  }
  return trimmed;
}

function read(file: string, what: string): Buffer {
  try {
    return readFileSync(file);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? "";
    throw new ConfigurationError(`cannot read ${file} (${what}): ${code}; name a file that you can read`);
  }
}

function check(use: () => unknown, fault: string): void {
  try {
    use();
  } catch (error) {
    throw new ConfigurationError(`${fault} (${(error as Error).message})`);
  }
}

function yesOrNo(name: string, text: string | undefined): boolean | undefined {
  if (text === undefined) {
    return undefined;
  }
  const yes = ["1", "true", "yes", "on"].includes(text.toLowerCase());
  if (!yes && !["0", "false", "no", "off"].includes(text.toLowerCase())) {
    throw new ConfigurationError(`WATTWISE_${name} is '${text}'; give 1 or 0`);
  }
  return yes;
}
