/** Tokens and TLS. */

import { X509Certificate } from "node:crypto";
import { closeSync, constants, fstatSync, openSync, readSync, statSync } from "node:fs";
import { BlockList, isIP } from "node:net";
import { hostname } from "node:os";
import { createSecureContext } from "node:tls";
import { type ChannelCredentials, credentials as grpc } from "@grpc/grpc-js";
import { ConfigurationError } from "./errors.js";

/** A token and the files for TLS. All are optional. */
export interface CredentialOptions {
  /** The output of `wattwise token create`; never logged. */
  token?: string | undefined;
  /** File that contains only the token; read again when it changes. Ignored if `token` is set. */
  tokenFile?: string | undefined;
  /** Whether to use TLS. Default: true if any file below is set. */
  tls?: boolean | undefined;
  /** PEM file of the trusted certificate authorities. Default: those of Node.js. */
  tlsCa?: string | undefined;
  /** PEM file of the client certificate, for mutual TLS. */
  tlsCert?: string | undefined;
  /** PEM file of its private key, without a passphrase. */
  tlsKey?: string | undefined;
  /** Send the token without TLS even to another machine, where others can read it. */
  insecure?: boolean | undefined;
}

const MOST_BYTES = 2 ** 24;

/** The credentials of a client. Files are read when `channel` or `token` is called; nothing of them appears in logs. */
export class Credentials {
  readonly #options: CredentialOptions;
  #seen = "";
  #token: string | undefined;

  constructor(options: CredentialOptions = {}) {
    this.#options = options;
  }

  /** Reads `WATTWISE_TOKEN`, `_TOKEN_FILE`, `_TLS`, `_TLS_CA`, `_TLS_CERT`, `_TLS_KEY` and `_INSECURE`. */
  static fromEnv(variables: NodeJS.ProcessEnv = process.env): Credentials {
    const variable = (name: string): string | undefined => {
      const text = variables[`WATTWISE_${name}`] || undefined;
      if (text !== undefined && /\p{Cc}/u.test(text)) {
        throw new ConfigurationError(
          `WATTWISE_${name} has a control character; remove it: files that were edited on Windows have one at the end ` +
            "of each line",
        );
      }
      return text;
    };
    return new Credentials({
      token: variable("TOKEN"),
      tokenFile: variable("TOKEN_FILE"),
      tls: flag("TLS", variable("TLS")),
      tlsCa: variable("TLS_CA"),
      tlsCert: variable("TLS_CERT"),
      tlsKey: variable("TLS_KEY"),
      insecure: flag("INSECURE", variable("INSECURE")),
    });
  }

  /**
   * The channel credentials for an address.
   *
   * @throws ConfigurationError if a file is invalid, or if the token would be sent without TLS to another machine.
   */
  channel(address: string): ChannelCredentials {
    const { token, tokenFile, insecure } = this.#options;
    const tls = this.#usesTls();
    if ((token || tokenFile) && !tls && !insecure && !isLoopback(address)) {
      throw new ConfigurationError(
        `refusing to send the token to ${address} in clear text: enable TLS (WATTWISE_TLS=1 or tls: true), or allow it ` +
          "if the network is trusted (WATTWISE_INSECURE=1 or insecure: true)",
      );
    }
    // Read here, so that an invalid token is reported before the first call.
    this.token();
    return tls ? this.#secure() : grpc.createInsecure();
  }

  /**
   * The token for a call, if there is one. While its file is missing or invalid, the last valid token.
   *
   * @throws ConfigurationError if there has been no valid token yet.
   */
  token(): string | undefined {
    const { token, tokenFile } = this.#options;
    if (token) {
      return validToken(token, "the token");
    }
    if (tokenFile) {
      this.#refresh(tokenFile);
    }
    return this.#token;
  }

  #refresh(file: string): void {
    const found = statSync(file, { throwIfNoEntry: false });
    const seen = found === undefined ? "" : `${found.mtimeMs} ${found.size} ${found.ino}`;
    if (this.#token !== undefined && seen === this.#seen) {
      return;
    }
    try {
      this.#token = validToken(read(file, "token file").toString("latin1"), `the content of ${file}`);
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
      const file = tlsCa ? "tlsCa" : tlsCert ? "tlsCert" : "tlsKey";
      throw new ConfigurationError(`TLS is off but ${file} is set: remove one of the two`);
    }
    if (Boolean(tlsCert) !== Boolean(tlsKey)) {
      const fault = tlsCert ? "tlsCert is set without tlsKey" : "tlsKey is set without tlsCert";
      throw new ConfigurationError(`${fault}: set both, a certificate and its key`);
    }
    return tls ?? files;
  }

  #secure(): ChannelCredentials {
    const { tlsCa, tlsCert, tlsKey } = this.#options;
    const ca = tlsCa ? read(tlsCa, "tlsCa") : null;
    const cert = tlsCert ? read(tlsCert, "tlsCert") : null;
    const key = tlsKey ? read(tlsKey, "tlsKey") : null;
    check(() => ca && new X509Certificate(ca), `${tlsCa} (tlsCa) contains no PEM certificate`);
    check(
      () => cert && key && createSecureContext({ cert, key }),
      `${tlsCert} (tlsCert) and ${tlsKey} (tlsKey) are not a certificate and its key: both must be PEM files, must ` +
        "belong together, and the key must have no passphrase",
    );
    return grpc.createSsl(ca, key, cert);
  }
}

/** Whether an address is on this machine: localhost, 127.0.0.0/8, ::1 or a Unix socket. */
export function isLoopback(address: string): boolean {
  if (/^unix(-abstract)?:/.test(address)) {
    return true;
  }
  const host = hostOf(address);
  return host.replace(/\.$/, "") === "localhost" || loopbackRanges.check(...family(host));
}

/**
 * Whether the address of one server is this machine's by its text: any loopback address or name, or its own name. A name
 * may lead elsewhere, so that this is no reason to send a token in clear text.
 */
export function isThisMachine(server: string): boolean {
  const host = hostOf(server).replace(/\.+$/, "");
  const own = hostname().toLowerCase();
  return (
    isLoopback(server) ||
    (host !== "" && [...LOOPBACK_NAMES, own, own.split(".")[0]].includes(host)) ||
    host.endsWith(".localhost") ||
    // What resolvers make of a short IPv4 address, and the addresses of no interface, which Linux connects to itself.
    /^(127(\.\d+){1,2}|0(\.0){0,3})$/.test(host) ||
    unspecified.check(...family(host))
  );
}

/** The host of a server in small letters; empty if there is none, or another name server is asked for it. */
function hostOf(address: string): string {
  // Excludes lists of addresses and dns:// authorities, which may start like a loopback address.
  const found = /^(?:(?:dns|ipv4|ipv6):(?:\/\/\/)?)?(?:\[([^\][]+)\]|([^\][:,/]+))(?::\w+)?$/.exec(address);
  return (found?.[1] ?? found?.[2] ?? "").toLowerCase();
}

/** An IP address without its zone, and its family, as a BlockList takes them; no address of any list for a name. */
function family(host: string): [string, "ipv4" | "ipv6"] {
  const ip = host.includes(":") ? host.replace(/%.*/, "") : host;
  return isIP(ip) ? [ip, isIP(ip) === 4 ? "ipv4" : "ipv6"] : ["192.0.2.1", "ipv4"];
}

const LOOPBACK_NAMES = ["localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"];
const loopbackRanges = new BlockList();
loopbackRanges.addSubnet("127.0.0.0", 8, "ipv4");
loopbackRanges.addAddress("::1", "ipv6");
const unspecified = new BlockList();
unspecified.addAddress("::", "ipv6");

function validToken(token: string, source: string): string {
  const trimmed = token.trim();
  if (!/^[A-Za-z0-9._~+/=-]+$/.test(trimmed)) {
    throw new ConfigurationError(
      `${source} is not a valid token: it is empty or contains invalid characters; copy it again`,
    );
  }
  return trimmed;
}

function read(file: string, what: string): Buffer {
  let descriptor: number | undefined;
  try {
    // A pipe would block the process, and a device may never end; a file may grow while it is read.
    descriptor = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
    const parts: Buffer[] = [];
    let size = fstatSync(descriptor).isFile() ? 0 : Infinity;
    for (let read = 1; read > 0 && size <= MOST_BYTES; size += read) {
      const part = Buffer.alloc(2 ** 16);
      read = readSync(descriptor, part);
      parts.push(part.subarray(0, read));
    }
    if (size > MOST_BYTES) {
      throw new ConfigurationError(
        `cannot read ${file} (${what}): it is not a regular file of at most ${MOST_BYTES} bytes; choose another file`,
      );
    }
    return Buffer.concat(parts);
  } catch (error) {
    if (error instanceof ConfigurationError) {
      throw error;
    }
    const code = (error as NodeJS.ErrnoException).code ?? "";
    throw new ConfigurationError(`cannot read ${file} (${what}): ${code}; choose a readable file`);
  } finally {
    if (descriptor !== undefined) {
      closeSync(descriptor);
    }
  }
}

function check(use: () => unknown, fault: string): void {
  try {
    use();
  } catch (error) {
    throw new ConfigurationError(`${fault} (${(error as Error).message})`);
  }
}

function flag(name: string, text: string | undefined): boolean | undefined {
  if (text === undefined) {
    return undefined;
  }
  const on = ["1", "true", "yes", "on"].includes(text.toLowerCase());
  if (!on && !["0", "false", "no", "off"].includes(text.toLowerCase())) {
    throw new ConfigurationError(`WATTWISE_${name}='${text}' is invalid; use 1 or 0`);
  }
  return on;
}
