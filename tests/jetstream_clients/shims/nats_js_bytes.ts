// In the place of jsr:@std/bytes, for the tests of nats.js.

export function equals(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && one.every((byte, i) => byte === other[i]);
}
