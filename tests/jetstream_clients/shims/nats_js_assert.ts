// In the place of jsr:@std/assert, which no registry of packages for Node has: what the tests of
// nats.js import from there. Their way of counting equal is that of node:assert.

import { AssertionError, deepStrictEqual, notDeepStrictEqual } from "node:assert";

// deno-lint-ignore no-explicit-any
type Class<T> = abstract new (...args: any[]) => T;

export { AssertionError };

export function fail(message = "failed"): never {
  throw new AssertionError({ message });
}

export function assert(value: unknown, message?: string): asserts value {
  if (!value) fail(message ?? `${value} is not true`);
}

export function assertFalse(value: unknown, message?: string): void {
  if (value) fail(message ?? `${value} is not false`);
}

export function assertExists<T>(value: T, message?: string): asserts value is NonNullable<T> {
  if (value === undefined || value === null) fail(message ?? `there is ${value}`);
}

export function assertEquals(actual: unknown, expected: unknown, message?: string): void {
  deepStrictEqual(actual, expected, message);
}

export function assertNotEquals(actual: unknown, expected: unknown, message?: string): void {
  notDeepStrictEqual(actual, expected, message);
}

export function assertAlmostEquals(actual: number, expected: number, tolerance = 1e-7): void {
  if (Math.abs(actual - expected) > tolerance) fail(`${actual} is not about ${expected}`);
}

export function assertStringIncludes(text: string, part: string, message?: string): void {
  if (!text.includes(part)) fail(message ?? `${part} is not in ${text}`);
}

export function assertArrayIncludes<T>(
  actual: ArrayLike<T>,
  expected: ArrayLike<T>,
  message?: string,
): void {
  const missing = Array.from(expected).filter((one) => !Array.from(actual).some(like(one)));
  if (missing.length > 0) fail(message ?? `not there: ${JSON.stringify(missing)}`);
}

function like(one: unknown): (other: unknown) => boolean {
  return (other) => {
    try {
      deepStrictEqual(other, one);
      return true;
    } catch {
      return false;
    }
  };
}

export function equal(one: unknown, other: unknown): boolean {
  return like(one)(other);
}

export function assertInstanceOf<T>(
  value: unknown,
  kind: Class<T>,
  message?: string,
): asserts value is T {
  if (!(value instanceof kind)) fail(message ?? `${value} is no ${kind.name}`);
}

export function assertIsError<E extends Error = Error>(
  error: unknown,
  kind?: Class<E>,
  part?: string | RegExp,
  message?: string,
): asserts error is E {
  assertInstanceOf(error, kind ?? Error, message ?? `not the error that was expected: ${error}`);
  const text = (error as Error).message;
  const fits = part instanceof RegExp ? part.test(text) : text.includes(part ?? "");
  if (!fits) fail(message ?? `the error does not say ${part}: ${text}`);
}

// The class may be left out; then the first argument after the function is the message.
export function assertThrows<E extends Error = Error>(
  fn: () => unknown,
  kind?: Class<E> | string,
  part?: string | RegExp,
  message?: string,
): E {
  let error: unknown;
  try {
    fn();
  } catch (thrown) {
    error = thrown;
  }
  return expected<E>(error, kind, part, message);
}

export async function assertRejects<E extends Error = Error>(
  fn: () => PromiseLike<unknown>,
  kind?: Class<E> | string,
  part?: string | RegExp,
  message?: string,
): Promise<E> {
  let error: unknown;
  try {
    await fn();
  } catch (thrown) {
    error = thrown;
  }
  return expected<E>(error, kind, part, message);
}

function expected<E extends Error>(
  error: unknown,
  kind?: Class<E> | string,
  part?: string | RegExp,
  message?: string,
): E {
  if (error === undefined) fail(message ?? "there was no error");
  if (typeof kind !== "function") kind = undefined;
  assertIsError(error, kind, part, message);
  return error as E;
}
