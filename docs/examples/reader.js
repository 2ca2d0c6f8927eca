#!/usr/bin/env node
// Reads a stream from a liftlog daemon: a complete client in one file, without any package.
//
// Written from docs/reference/protocol.md (the requests) and docs/reference/storage-format.md (the
// content of the answers), as an example for other languages. Needs Node 18 or newer.
//
//     node reader.js orders                          all records, one JSON object per line
//     node reader.js orders --from latest --follow   records as they arrive, until Ctrl-C
//     node reader.js orders --describe               the daemon's description of the stream
//     node reader.js orders --server tcp://a:9292,tcp://b:9292    from the nodes of a cluster
//
// If the daemon requires a token, it is read from the environment: LIFTLOG_TOKEN. For tls://
// addresses NODE_EXTRA_CA_CERTS can name a file of trusted CA certificates.

'use strict';

const crypto = require('node:crypto');
const net = require('node:net');
const tls = require('node:tls');
const { parseArgs } = require('node:util');
const zlib = require('node:zlib');

const PROTOCOL_VERSION = 1;
const CLIENT_NAME = 'reader.js/1';
const DEFAULT_PORT = 9292;
const MAX_MAP_BYTES = 16 * 1024 * 1024; // per answer
const MAX_BODY_BYTES = 256 * 1024 * 1024;
const MAX_FETCH_BYTES = 1024 * 1024;
const WAIT_MS = 10_000;
const PATIENCE_MS = 60_000; // for so long a read tries to reach a node that answers
const MAX_ADDRESSES = 64;
const NOT_LEADER = 25;
const NOT_READY = 29;

// --- msgpack: the part that the protocol uses -------------------------------------------------

/** The bytes of a value. Objects become maps, Buffers `bin`, integers `uint`. */
function pack(value) {
  if (value === null) return Buffer.from([0xc0]);
  if (typeof value === 'boolean') return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === 'number' && !Number.isInteger(value)) return packFloat(value);
  if (typeof value === 'number' || typeof value === 'bigint') return packInteger(BigInt(value));
  if (typeof value === 'string') {
    const text = Buffer.from(value);
    return Buffer.concat([packSize(text.length, 0xa0, 32, 0xd9), text]);
  }
  if (Buffer.isBuffer(value)) {
    return Buffer.concat([packSize(value.length, 0, 0, 0xc4), value]);
  }
  if (Array.isArray(value)) {
    return Buffer.concat([packCount(value.length, 0x90), ...value.map(pack)]);
  }
  const entries = Object.entries(value).flatMap(([key, item]) => [pack(key), pack(item)]);
  return Buffer.concat([packCount(entries.length / 2, 0x80), ...entries]);
}

function packFloat(value) {
  const bytes = Buffer.alloc(9, 0xcb);
  bytes.writeDoubleBE(value, 1);
  return bytes;
}

function packInteger(value) {
  if (value < 0n || value >= 1n << 63n) throw new RangeError(`not a uint: ${value}`);
  if (value < 128n) return Buffer.from([Number(value)]);
  const bytes = Buffer.alloc(9, 0xcf);
  bytes.writeBigUInt64BE(value, 1);
  return bytes;
}

/** Head of a text or of bytes: short form below `shortBelow`, else 8, 16 or 32 bits of length. */
function packSize(size, shortCode, shortBelow, code) {
  if (size < shortBelow) return Buffer.from([shortCode | size]);
  if (size < 256) return Buffer.from([code, size]);
  const bytes = Buffer.alloc(5, code + 2);
  bytes.writeUInt32BE(size, 1);
  return bytes;
}

function packCount(count, code) {
  if (count < 16) return Buffer.from([code | count]);
  return Buffer.from([code === 0x80 ? 0xde : 0xdc, count >> 8, count & 0xff]);
}

/** The one value in `bytes`. Integers become BigInt if a Number cannot hold them. */
function unpack(bytes) {
  let at = 0;
  const skip = (size) => {
    at += size;
    if (at > bytes.length) throw new ProtocolError('a msgpack value passes the end of its frame');
    return at - size;
  };
  const sized = (size) => bytes.subarray(skip(size), at);
  const u8 = () => bytes[skip(1)];
  const u16 = () => bytes.readUInt16BE(skip(2));
  const u32 = () => bytes.readUInt32BE(skip(4));
  const small = (value) => (Number.isSafeInteger(Number(value)) ? Number(value) : value);

  function array(count, depth) {
    return Array.from({ length: Math.min(count, bytes.length) }, () => next(depth + 1));
  }
  function map(count, depth) {
    const found = Object.create(null); // so that no key has a meaning in JavaScript
    for (let i = 0; i < count; i++) {
      const key = next(depth + 1);
      if (typeof key !== 'string') throw new ProtocolError('a key that is not text');
      found[key] = next(depth + 1);
    }
    return found;
  }
  function next(depth) {
    if (depth > 8) throw new ProtocolError('nested too deep');
    const code = u8();
    if (code < 0x80) return code;
    if (code < 0x90) return map(code & 0x0f, depth);
    if (code < 0xa0) return array(code & 0x0f, depth);
    if (code < 0xc0) return sized(code & 0x1f).toString();
    if (code >= 0xe0) return code - 256;
    switch (code) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return sized(u8());
      case 0xc5: return sized(u16());
      case 0xc6: return sized(u32());
      case 0xca: return bytes.readFloatBE(skip(4));
      case 0xcb: return bytes.readDoubleBE(skip(8));
      case 0xcc: return u8();
      case 0xcd: return u16();
      case 0xce: return u32();
      case 0xcf: return small(bytes.readBigUInt64BE(skip(8)));
      case 0xd0: return bytes.readInt8(skip(1));
      case 0xd1: return bytes.readInt16BE(skip(2));
      case 0xd2: return bytes.readInt32BE(skip(4));
      case 0xd3: return small(bytes.readBigInt64BE(skip(8)));
      case 0xd9: return sized(u8()).toString();
      case 0xda: return sized(u16()).toString();
      case 0xdb: return sized(u32()).toString();
      case 0xdc: return array(u16(), depth);
      case 0xdd: return array(u32(), depth);
      case 0xde: return map(u16(), depth);
      case 0xdf: return map(u32(), depth);
      default: throw new ProtocolError(`msgpack type 0x${code.toString(16)} is not in use here`);
    }
  }
  const value = next(1);
  if (at !== bytes.length) throw new ProtocolError('bytes after the map');
  return value;
}

// --- CRC-32C (Castagnoli, reflected) ------------------------------------------------------------

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc;
});

function crc32c(bytes) {
  let crc = 0xffffffff;
  for (let i = 0; i < bytes.length; i++) crc = CRC_TABLE[(crc ^ bytes[i]) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}

// --- record batches -----------------------------------------------------------------------------

const HEADER_BYTES = 64;
const MAGIC = 0x01424c4c; // 4C 4C 42 01
const CODEC = 0x0007;
const OFFSET_DELTAS = 0x0010;
const TIMESTAMP_DELTAS = 0x0020;
const SUBJECT_IDS = 0x0040;
const KEYS = 0x0080;
const HEADERS = 0x0100;
const TOMBSTONES = 0x0200;
const ESCAPED_SUBJECTS = 0x0400;
const KNOWN_ATTRIBUTES = 0x07f7;
const MAX_RAW_BYTES = 2 ** 27;

/**
 * All batches of a fetch answer or a segment file.
 *
 * `place` is the range that they must tile: from the offset `next` up to `end`. A disk that puts a
 * write in the wrong place leaves valid batches where others belong; only this check detects them.
 */
function* decodeBatches(bytes, place = null) {
  for (let at = 0; at < bytes.length; ) {
    const batch = decodeBatch(bytes.subarray(at), place);
    yield batch;
    at += batch.sizeBytes;
  }
  if (place !== null && place.next !== place.end) {
    throw new CorruptBatch(`the batches end at offset ${place.next}, not at ${place.end}`);
  }
}

/** The batch at the beginning of `bytes`. Offsets and times are BigInt; nulls are null. */
function decodeBatch(bytes, place = null) {
  if (bytes.length < HEADER_BYTES) throw new CorruptBatch('shorter than a batch header');
  if (bytes.readUInt32LE(0) !== MAGIC) throw new CorruptBatch('no record batch of version 1');
  if (crc32c(bytes.subarray(0, 60)) !== bytes.readUInt32LE(60)) {
    throw new CorruptBatch('the checksum of the header is wrong');
  }
  const size = bytes.readUInt32LE(4);
  const baseOffset = bytes.readBigUInt64LE(8);
  const nextOffset = baseOffset + BigInt(bytes.readUInt32LE(16)) + 1n;
  if (size < HEADER_BYTES || size > bytes.length) throw new CorruptBatch('the batch is cut off');
  if (place !== null) continuePlace(place, baseOffset, nextOffset, bytes.readUInt32LE(40));
  const batch = bytes.subarray(0, size);
  if (crc32c(batch.subarray(HEADER_BYTES)) !== batch.readUInt32LE(56)) {
    const what = `the checksum of the batch [${baseOffset}, ${nextOffset}) is wrong`;
    throw new CorruptBatch(what, nextOffset);
  }
  const count = batch.readUInt32LE(20);
  const attributes = batch.readUInt16LE(44);
  if (attributes & ~KNOWN_ATTRIBUTES) throw new CorruptBatch('an attribute that is not known');
  if (batch.readBigUInt64LE(48) !== 0n) throw new CorruptBatch('a reserved field is in use');

  const columns = new ColumnReader(attributes & CODEC ? inflate(batch, attributes & CODEC) : batch);
  const offsetDeltas = attributes & OFFSET_DELTAS ? columns.numbers(count, 4) : null;
  const timeDeltas = attributes & TIMESTAMP_DELTAS ? columns.numbers(count, 4) : null;
  const [subjectCount] = columns.numbers(2, 4);
  const subjects = columns.binary(subjectCount, (attributes & ESCAPED_SUBJECTS) !== 0).items;
  const subjectIds = attributes & SUBJECT_IDS ? columns.numbers(count, 2) : null;
  const keys = attributes & KEYS ? columns.binary(count, true) : null;
  const headers = attributes & HEADERS ? columns.binary(count, false) : null;
  const values = columns.binary(count, (attributes & TOMBSTONES) !== 0);

  const baseTime = batch.readBigInt64LE(24);
  const records = [];
  for (let i = 0; i < count; i++) {
    const subject = subjects[subjectIds ? subjectIds[i] : 0];
    if (subject === undefined) throw new CorruptBatch('a subject that is not in the dictionary');
    records.push({
      offset: baseOffset + BigInt(offsetDeltas ? offsetDeltas[i] : i),
      timestampNs: baseTime + 1000n * BigInt(timeDeltas ? timeDeltas[i] : 0),
      subject: subject.toString(),
      key: keys && keys.isValid(i) ? keys.items[i] : null,
      headers: headers ? headers.items[i] : Buffer.alloc(0),
      value: values.isValid(i) ? values.items[i] : null,
    });
  }
  return { baseOffset, nextOffset, sizeBytes: size, records };
}

/** A compressed batch with its columns decompressed. */
function inflate(batch, codec) {
  const data = HEADER_BYTES + 8;
  if (batch.length < data) throw new CorruptBatch('shorter than a compressed batch');
  const rawLength = batch.readUInt32LE(HEADER_BYTES);
  const length = batch.readUInt32LE(HEADER_BYTES + 4);
  if (rawLength > MAX_RAW_BYTES || data + length > batch.length) {
    throw new CorruptBatch('impossible lengths of a compressed body');
  }
  const packed = batch.subarray(data, data + length);
  let raw;
  if (codec === 1) raw = inflateLz4(packed, rawLength);
  else if (codec === 2) raw = inflateZstd(packed, rawLength);
  else throw new CorruptBatch(`codec ${codec} is not known`);
  return Buffer.concat([batch.subarray(0, HEADER_BYTES), raw]);
}

/** Throws unless this batch belongs in `place`; then moves `place` to the next one. */
function continuePlace(place, baseOffset, nextOffset, epoch) {
  if (baseOffset !== place.next || nextOffset > place.end || epoch < (place.epoch ?? 0)) {
    const due = `where [${place.next}, ${place.end}) is due`;
    throw new CorruptBatch(`the batch [${baseOffset}, ${nextOffset}) of epoch ${epoch} is ${due}`);
  }
  Object.assign(place, { next: nextOffset, epoch });
}

/** Decompresses an LZ4 block: a sequence of literals and copies of earlier bytes. */
function inflateLz4(packed, rawLength) {
  if (rawLength > 255 * packed.length) throw new CorruptBatch('an LZ4 block never grows that much');
  const raw = Buffer.alloc(rawLength);
  let at = 0;
  let end = 0;
  const more = (nibble) => {
    let length = nibble;
    for (let byte = 255; nibble === 15 && byte === 255; length += byte) byte = packed[at++] ?? NaN;
    return length;
  };
  while (at < packed.length) {
    const token = packed[at++];
    const literals = more(token >> 4);
    if (!(end + literals <= rawLength && at + literals <= packed.length)) break;
    end += packed.copy(raw, end, at, at + literals);
    at += literals;
    if (at === packed.length) return end === rawLength ? raw : fail();
    const distance = packed[at] | (packed[at + 1] << 8);
    at += 2;
    const length = more(token & 15) + 4;
    if (!(distance >= 1 && distance <= end && end + length <= rawLength)) break;
    for (const stop = end + length; end < stop; end++) raw[end] = raw[end - distance];
  }
  return fail();

  function fail() {
    throw new CorruptBatch('the LZ4 block is damaged');
  }
}

function inflateZstd(packed, rawLength) {
  if (!zlib.zstdDecompressSync) {
    throw new Error('the batches are compressed with zstd, which needs Node 22.15 or newer');
  }
  const raw = zlib.zstdDecompressSync(packed, { maxOutputLength: rawLength || 1 });
  if (raw.length !== rawLength) throw new CorruptBatch('the zstd frame has another length');
  return raw;
}

/** Reads one column after another; each begins at a multiple of 8. */
class ColumnReader {
  constructor(batch) {
    this.batch = batch;
    this.at = HEADER_BYTES;
  }

  /** The next part, of the given number of bytes. */
  part(size) {
    const start = this.at;
    if (start + size > this.batch.length) throw new CorruptBatch('a column passes the end');
    this.at = Math.min(this.batch.length, (start + size + 7) & ~7);
    return this.batch.subarray(start, start + size);
  }

  numbers(count, width) {
    const bytes = this.part(count * width);
    return Array.from({ length: count }, (_, i) => bytes.readUIntLE(i * width, width));
  }

  /** A binary column. `isValid` applies to bitmaps of nulls, not to those of escaped subjects. */
  binary(count, hasBitmap) {
    const ends = this.numbers(count + 1, 4);
    const bitmap = hasBitmap ? this.part(Math.ceil(count / 8)) : null;
    const bytes = this.part(ends[count]);
    const items = [];
    for (let i = 0; i < count; i++) {
      if (ends[i] > ends[i + 1]) throw new CorruptBatch('the offsets of a column run backwards');
      items.push(bytes.subarray(ends[i], ends[i + 1]));
    }
    const isValid = (i) => bitmap === null || ((bitmap[i >> 3] >> (i & 7)) & 1) === 1;
    return { items, isValid };
  }
}

// --- the connection -----------------------------------------------------------------------------

class ProtocolError extends Error {}

/** `nextOffset` is where to continue reading, if the header of the batch is valid. */
class CorruptBatch extends Error {
  constructor(message, nextOffset = null) {
    super(message);
    this.nextOffset = nextOffset;
  }
}

/** The error that the daemon answered: `code`, `codeName`, `retriable`, `hint`, `details`. */
class RequestError extends Error {
  constructor(head) {
    super(`${head.n}: ${head.m}${head.h ? ` (${head.h})` : ''}`);
    this.code = head.c;
    this.codeName = head.n;
    this.retriable = head.r ?? false;
    this.hint = head.h ?? '';
    this.details = head.d ?? {};
  }
}

class Connection {
  /** `address` is tcp:// or tls://host:port, or unix:///path. Resolves after the login. */
  static async open(address, { token } = {}) {
    const connection = new Connection(connect(address));
    await connection.enter(token);
    return connection;
  }

  constructor(socket) {
    this.socket = socket;
    this.waiting = new Map(); // id -> {resolve, reject, onHead}
    this.lastId = 0;
    this.chunks = [];
    this.received = 0;
    this.mapBytes = null; // length of the next map, null before it is known
    this.head = null; // the map whose body follows
    this.failure = null;
    socket.on('data', (chunk) => this.take(chunk));
    socket.on('error', (error) => this.end(error));
    socket.on('close', () => this.end(new ProtocolError('the daemon closed the connection')));
  }

  async enter(token) {
    const nonce = crypto.randomBytes(16);
    const hello = { v: [PROTOCOL_VERSION], n: nonce, c: CLIENT_NAME };
    const { head: challenge } = await this.request('hello', hello);
    // With a certificate or a Unix user the daemon already knows who we are.
    const known = [token ? 'token' : null, 'certificate', 'unix', 'anonymous'];
    const method = known.find((one) => challenge.m.includes(one));
    if (!method) throw new ProtocolError(`it wants one of ${challenge.m}`);
    const auth = method === 'token' ? { m: method, t: token } : { m: method };
    const { head: welcome } = await this.request('auth', auth);
    this.limits = { maxFetchBytes: welcome.m ?? 8388608, maxWaitMs: welcome.w ?? 60000 };
  }

  /** Send a request. Resolves with {id, head, body} of its answer; calls `onHead` when the answer's
   * map has arrived, before its body. */
  request(kind, fields, onHead = () => {}) {
    const id = ++this.lastId;
    return new Promise((resolve, reject) => {
      if (this.failure !== null) throw this.failure;
      this.waiting.set(id, { resolve, reject, onHead });
      this.send({ k: kind, i: id, ...fields });
    });
  }

  send(message) {
    const map = pack(message);
    const length = Buffer.alloc(4);
    length.writeUInt32LE(map.length);
    this.socket.write(Buffer.concat([length, map]));
  }

  async describe(stream) {
    return (await this.request('describe', { s: stream })).head.d;
  }

  /**
   * The records of a stream, in order.
   *
   * from: 'earliest', 'latest', an offset (BigInt), or {timeNs: BigInt}.
   * until: 'end' (what is committed now), an offset (exclusive), or null: wait for more, forever.
   * onCorrupt: called with the error of a damaged range, which is then skipped; without it the
   * error is thrown.
   * place: what another connection needs to continue: `next` is the offset after the last record,
   * `stop`, `x` and `e` are as in the requests. It is kept up to date.
   */
  async *read(stream, { from = 'earliest', until = 'end', onCorrupt = null, place = {} } = {}) {
    const options = {
      s: stream,
      m: Math.min(MAX_FETCH_BYTES, this.limits.maxFetchBytes),
      w: until === null ? Math.min(WAIT_MS, this.limits.maxWaitMs) : 0,
    };
    if (place.x) Object.assign(options, { x: place.x, e: place.e });
    let stop = place.stop ?? (until === 'end' ? null : until);
    const ask = (position) => {
      const fetch = { head: null, next: null };
      fetch.answer = this.request('fetch', { ...options, ...position }, (head) => {
        fetch.head = head;
        if (fetch === current) goOn(head);
      });
      fetch.answer.catch(() => {}); // it is awaited later, or no longer wanted
      fetch.id = this.lastId;
      return fetch;
    };
    // The next range is requested while the body of the current one is still arriving, but no range
    // beyond it: so a slow application holds two bodies and not the whole stream.
    const goOn = (head) => {
      if (until === 'end' && stop === null) stop = BigInt(head.h);
      Object.assign(options, { x: head.x, e: head.e });
      Object.assign(place, { x: head.x, e: head.e, stop });
      place.next ??= BigInt(head.o); // `latest` and times have become an offset
      if (stop === null || BigInt(head.n) < stop) current.next = ask({ o: head.n });
    };
    const start = place.next ?? from;
    let current = ask(typeof start === 'object' ? { t: start.timeNs } : { o: start });
    let suspect = null; // the offset that is requested again, because another batch was there
    try {
      while (current !== null) {
        let [first, due] = [0n, null];
        try {
          const { head, body } = await current.answer;
          const [wanted, start] = [BigInt(head.o), BigInt(head.l)];
          first = wanted > start ? wanted : start;
          due = { next: BigInt(head.f), end: BigInt(head.n) };
          for (const batch of body.length ? decodeBatches(body, due) : []) {
            for (const record of batch.records) {
              // Batches are complete: they can begin and end with records that were not requested.
              if (record.offset < first || (stop !== null && record.offset >= stop)) continue;
              place.next = record.offset + 1n;
              yield record;
            }
            place.next = batch.nextOffset;
          }
          place.next = BigInt(head.n);
        } catch (error) {
          let next = offsetAfter(error);
          if (next === null && error instanceof CorruptBatch) {
            // The daemon has an index: its answer for this offset says how far the damage extends.
            const at = due.next > first ? due.next : first;
            if (suspect !== at) {
              suspect = at;
              this.cancel(current.next);
              current = stop === null || at < stop ? ask({ o: at, m: 1 }) : null;
              continue;
            }
            next = due.end > at ? due.end : at + 1n;
          }
          if (next === null || onCorrupt === null) throw error;
          onCorrupt(error);
          place.next = next;
          this.cancel(current.next); // the next range can begin inside this answer
          current.next = stop === null || next < stop ? ask({ o: next }) : null;
        }
        current = current.next;
        if (current?.head) goOn(current.head);
      }
    } finally {
      this.cancel(current?.next ?? current);
    }
  }

  cancel(fetch) {
    if (this.waiting.has(fetch?.id)) this.send({ k: 'cancel', i: fetch.id });
  }

  close() {
    this.socket.end();
  }

  // --- incoming bytes

  take(chunk) {
    this.chunks.push(chunk);
    this.received += chunk.length;
    try {
      while (this.takeFrame());
    } catch (error) {
      this.socket.destroy(error);
    }
  }

  /** One step: a length, a map or a body. False if more bytes are needed. */
  takeFrame() {
    if (this.head !== null) {
      if (this.received < this.head.b) return false;
      const head = this.head;
      this.head = null;
      this.settle(head, this.bytes(head.b));
    } else if (this.mapBytes === null) {
      if (this.received < 4) return false;
      this.mapBytes = this.bytes(4).readUInt32LE();
      if (this.mapBytes > MAX_MAP_BYTES) throw new ProtocolError('a frame that is too long');
    } else {
      if (this.received < this.mapBytes) return false;
      const head = unpack(this.bytes(this.mapBytes));
      this.mapBytes = null;
      if (head.k !== 'error') this.waiting.get(head.i)?.onHead(head);
      if (head.b > MAX_BODY_BYTES) throw new ProtocolError('a body that is too long');
      if (head.b) this.head = head;
      else this.settle(head, Buffer.alloc(0));
    }
    return true;
  }

  bytes(count) {
    if (this.chunks.length > 1 && this.chunks[0].length < count) {
      this.chunks = [Buffer.concat(this.chunks)];
    }
    this.received -= count;
    const whole = this.chunks[0] ?? Buffer.alloc(0);
    if (whole.length === count) this.chunks.shift();
    else this.chunks[0] = whole.subarray(count);
    return whole.subarray(0, count);
  }

  settle(head, body) {
    if (head.k === 'error' && head.i === 0) throw new RequestError(head);
    const waiter = this.waiting.get(head.i);
    this.waiting.delete(head.i);
    if (head.k === 'error') waiter?.reject(new RequestError(head));
    else waiter?.resolve({ head, body });
  }

  end(error) {
    this.failure ??= error;
    for (const waiter of this.waiting.values()) waiter.reject(error);
    this.waiting.clear();
  }
}

/**
 * The records of a stream, from a daemon or from the nodes of a cluster: `Connection.read`, which
 * continues on another node when its leader has changed. Any node may be asked first; one that does
 * not lead the stream names the leader. A single daemon without a cluster is asked once.
 */
async function* readFrom(addresses, stream, { token, ...options } = {}) {
  const known = [...addresses];
  const place = {};
  let [address, connection, since, pause, named] = [known[0], null, null, 0, false];
  for (;;) {
    try {
      connection = await Connection.open(address, { token });
      for await (const record of connection.read(stream, { ...options, place })) {
        [since, pause] = [null, 0];
        yield record;
      }
      return;
    } catch (error) {
      const other = known[(known.indexOf(address) + 1) % known.length];
      const isOfCluster = error.code === NOT_LEADER || error.code === NOT_READY;
      if (error instanceof RequestError ? !error.retriable : error instanceof CorruptBatch) {
        throw error;
      }
      if (other === address && !isOfCluster) throw error;
      since ??= Date.now();
      if (Date.now() - since > PATIENCE_MS) throw error;
      const leader = error.code === NOT_LEADER ? error.details.address : null;
      const follows = mayFollow(leader, address, known);
      address = follows ? leader : other;
      pause = follows && !named ? 0 : Math.min(Math.max(2 * pause, 50), 1000);
      named = follows; // a node that is named is asked at once, but not again and again
    } finally {
      connection?.close();
      connection = null;
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** Whether to ask the node that another one names; a reader that uses TLS never goes on without. */
function mayFollow(leader, address, known) {
  if (!leader || leader === address) return false;
  if (address.startsWith('tls:') && !leader.startsWith('tls:')) return false;
  if (!known.includes(leader)) {
    if (known.length >= MAX_ADDRESSES) return false;
    known.push(leader);
  }
  return true;
}

/** Where records continue after damage; null if the error does not say. */
function offsetAfter(error) {
  if (error instanceof CorruptBatch) return error.nextOffset;
  return error.codeName === 'CORRUPT_RANGE' ? BigInt(error.details.next_offset) : null;
}

function connect(address) {
  const url = new URL(address);
  if (url.protocol === 'unix:') return net.connect({ path: decodeURIComponent(url.pathname) });
  const host = url.hostname.replace(/^\[|\]$/g, '');
  const where = { host, port: Number(url.port || DEFAULT_PORT), noDelay: true };
  if (url.protocol === 'tcp:') return net.connect(where);
  if (url.protocol === 'tls:') return tls.connect({ ...where, minVersion: 'TLSv1.2' });
  throw new Error(`${address} is not tcp://host:port, tls://host:port or unix:///path`);
}

// --- the command --------------------------------------------------------------------------------

const USAGE = `usage: node reader.js STREAM [options]
  --server URL    tcp:// or tls://host:port, unix:///path
                  (default: LIFTLOG_SERVER, else tcp://127.0.0.1:${DEFAULT_PORT}); also --address;
                  several nodes of a cluster with commas between them
  --from WHERE    earliest (default), latest, an offset, or time:<ns since 1970>
  --follow        go on with records as they come
  --count N       end after so many records
  --skip-corrupt  pass by damaged ranges, with a line about each on stderr
  --describe      print the daemon's description of the stream, and end
`;

/** For JSON: text if the bytes are UTF-8, else {"base64": ...}. */
function readable(bytes) {
  if (bytes === null) return null;
  const text = bytes.toString();
  return Buffer.from(text).equals(bytes) ? text : { base64: bytes.toString('base64') };
}

function toLine(value) {
  return JSON.stringify(value, (_, item) => (typeof item === 'bigint' ? item.toString() : item));
}

function position(text) {
  if (text === 'earliest' || text === 'latest') return text;
  if (text.startsWith('time:')) return { timeNs: BigInt(text.slice(5)) };
  return BigInt(text);
}

/** Resolves when there is space again: a reader that is faster than its pipe must wait. */
function print(line) {
  if (process.stdout.write(`${line}\n`)) return undefined;
  return new Promise((resolve) => process.stdout.once('drain', resolve));
}

async function main() {
  const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      server: { type: 'string' },
      address: { type: 'string' },
      from: { type: 'string', default: 'earliest' },
      follow: { type: 'boolean', default: false },
      count: { type: 'string', default: 'Infinity' },
      'skip-corrupt': { type: 'boolean', default: false },
      describe: { type: 'boolean', default: false },
    },
  });
  if (positionals.length !== 1) throw new Error(`one stream is needed\n${USAGE}`);
  const [stream] = positionals;
  const { LIFTLOG_SERVER, LIFTLOG_TOKEN } = process.env;
  const given = options.server || options.address || LIFTLOG_SERVER;
  const server = given || `tcp://127.0.0.1:${DEFAULT_PORT}`;
  const addresses = server.split(',').map((one) => one.trim());
  if (options.describe) {
    const connection = await openFirst(addresses, LIFTLOG_TOKEN);
    try {
      await print(toLine(await connection.describe(stream)));
    } finally {
      connection.close();
    }
    return;
  }
  let left = Number(options.count);
  const records = readFrom(addresses, stream, {
    token: LIFTLOG_TOKEN,
    from: position(options.from),
    until: options.follow ? null : 'end',
    onCorrupt: options['skip-corrupt'] ? (error) => console.error(error.message) : null,
  });
  for await (const record of records) {
    await print(
      toLine({
        offset: record.offset,
        timestamp_ns: record.timestampNs,
        subject: record.subject,
        key: readable(record.key),
        headers: readable(record.headers),
        value: readable(record.value),
      }),
    );
    if (--left <= 0) break;
  }
}

/** A connection to the first of the nodes that can be reached. */
async function openFirst(addresses, token) {
  for (const address of addresses.slice(0, -1)) {
    try {
      return await Connection.open(address, { token });
    } catch (error) {
      if (error instanceof RequestError && !error.retriable) throw error;
    }
  }
  return Connection.open(addresses.at(-1), { token });
}

module.exports = {
  Connection, readFrom, RequestError, CorruptBatch, decodeBatches, pack, unpack, crc32c,
};

if (require.main === module) {
  process.stdout.on('error', () => process.exit()); // the reader has stopped, as with `| head`
  main().catch((error) => {
    console.error(`reader.js: ${error.message}`);
    process.exitCode = 1;
  });
}
