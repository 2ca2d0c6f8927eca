// In the place of jsr:@std/io, for the transport of nats.js.

export async function writeAll(
  writer: { write(bytes: Uint8Array): Promise<number> },
  bytes: Uint8Array,
): Promise<void> {
  for (let done = 0; done < bytes.length;) {
    done += await writer.write(bytes.subarray(done));
  }
}
