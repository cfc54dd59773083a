/* The floor over TLS: one connection, one request after the other, SSL_read until the answer is whole.
 *
 * A contestant of the benchmark harness (see benches/src/harness/protocol.rs): says `ready`, does a pass for every `go`, says
 * one line of JSON. No parsing beyond Content-Length, no batches, no retries; payload moves through an arena of the given size.
 * A connection that the server closes between two answers is opened again, once a pass.
 *
 * usage: ssl_read --ca FILE [--read-ahead] --uri https://ADDRESS:PORT/PREFIX/ --manifest FILE --batch-size N
 *        --arena BYTES --seed N
 */
#define _GNU_SOURCE
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { CHUNK = 1 << 20, HEAD_MAX = 16 << 10, ROOM_MIN = 64 << 10, AHEAD = 256 << 10 };

struct object { char *key; unsigned long long size; };

static char *arena;
static size_t arena_bytes, at;

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    unsigned long code = ERR_get_error();
    fprintf(stderr, code ? ": %s\n" : "\n", code ? ERR_reason_error_string(code) : "");
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Room where the last receive ended; an end too short for a head is skipped. */
static size_t room(void) {
    if (arena_bytes - at < ROOM_MIN) at = 0;
    size_t left = arena_bytes - at;
    return left < CHUNK ? left : CHUNK;
}

static SSL *ssl_of(BIO *link) {
    SSL *ssl = NULL;
    BIO_get_ssl(link, &ssl);
    return ssl;
}

static struct object *read_manifest(const char *path, size_t *count) {
    FILE *file = fopen(path, "r");
    if (!file) die("manifest %s: %s", path, strerror(errno));
    struct object *objects = NULL;
    size_t room_for = 0;
    char *line = NULL;
    size_t capacity = 0;
    *count = 0;
    while (getline(&line, &capacity, file) > 0) {
        char *tab = strchr(line, '\t');
        if (!tab) die("manifest %s: a line without a tab", path);
        *tab = 0;
        if (strpbrk(line, " %#?\r")) die("manifest %s: the key %s needs escapes, which this floor has not", path, line);
        if (*count == room_for) objects = realloc(objects, (room_for = room_for * 2 + 64) * sizeof *objects);
        if (!objects) die("out of memory");
        objects[(*count)++] = (struct object){strdup(line), strtoull(tab + 1, NULL, 10)};
    }
    free(line);
    fclose(file);
    if (!*count) die("manifest %s is empty", path);
    return objects;
}

static BIO *secure(const char *host, const char *port, const char *authority, int read_ahead) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context || !SSL_CTX_load_verify_locations(context, authority, NULL)) die("the authority %s", authority);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    if (read_ahead) {
        SSL_CTX_set_read_ahead(context, 1);
        SSL_CTX_set_default_read_buffer_len(context, AHEAD);
    }
    BIO *link = BIO_new_ssl_connect(context);
    SSL_CTX_free(context); /* the connection holds it */
    SSL *ssl = ssl_of(link);
    if (!ssl || !X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host)) die("the address %s", host);
    BIO_set_conn_hostname(link, host);
    BIO_set_conn_port(link, port);
    if (BIO_do_connect(link) != 1) die("connecting to %s:%s", host, port);
    BIO_set_tcp_ndelay(BIO_get_fd(link, NULL), 1);
    return link;
}

/* 0 when the connection is gone. */
static size_t receive(SSL *ssl) {
    int most = (int)room(); /* may move to the arena's start */
    int got = SSL_read(ssl, arena + at, most);
    return got > 0 ? (size_t)got : 0;
}

/* One object, from request to last byte. 0 when the connection is gone and nothing of the answer has come. */
static int fetch(SSL *ssl, const char *host, const char *prefix, const struct object *object) {
    char request[8192];
    int length = snprintf(request, sizeof request, "GET /%s%s HTTP/1.1\r\nHost: %s\r\n\r\n", prefix, object->key, host);
    if (length >= (int)sizeof request) die("a key is too long");
    if (SSL_write(ssl, request, length) != length) return 0;
    char head[HEAD_MAX + 1];
    size_t seen = 0, total = 0;
    char *end;
    do { /* The head is looked at in a copy: it may come in pieces, and the arena may wrap between them. */
        size_t got = receive(ssl);
        if (!got && !total) return 0;
        if (!got) die("the connection breaks inside an answer");
        size_t take = got < HEAD_MAX - seen ? got : HEAD_MAX - seen;
        memcpy(head + seen, arena + at, take);
        seen += take;
        head[seen] = 0;
        total += got;
        end = strstr(head, "\r\n\r\n");
        at += got;
        if (!end && seen == HEAD_MAX) die("the response header is too long");
    } while (!end);
    if (strncmp(head, "HTTP/1.1 200", 12)) die("the server answers %.*s", (int)strcspn(head, "\r"), head);
    *end = 0;
    char *field = strcasestr(head, "\r\ncontent-length:");
    unsigned long long size = field ? strtoull(field + 17, NULL, 10) : 0;
    if (!field || size != object->size) die("%s has %llu bytes, %llu in the manifest", object->key, size, object->size);
    unsigned long long have = total - (end + 4 - head);
    while (have < size) {
        size_t got = receive(ssl);
        if (!got) die("the connection breaks inside an answer");
        at += got;
        have += got;
    }
    if (have > size) die("%s has more bytes than its Content-Length", object->key);
    return 1;
}

int main(int count, char **words) {
    const char *uri = NULL, *manifest = NULL, *authority = NULL;
    unsigned long long batch = 1;
    int read_ahead = 0;
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : "";
        if (!strcmp(words[i], "--read-ahead")) { read_ahead = 1; continue; }
        else if (!strcmp(words[i], "--uri")) uri = value;
        else if (!strcmp(words[i], "--manifest")) manifest = value;
        else if (!strcmp(words[i], "--ca")) authority = value;
        else if (!strcmp(words[i], "--batch-size")) batch = strtoull(value, NULL, 10);
        else if (!strcmp(words[i], "--arena")) arena_bytes = strtoull(value, NULL, 10);
        else if (strcmp(words[i], "--seed")) die("unknown argument %s", words[i]);
        i++;
    }
    char host[256], port[16], prefix[4096] = "";
    if (!uri || sscanf(uri, "https://%255[^:/]:%15[0-9]/%4095s", host, port, prefix) < 2) die("--uri must be https://ADDRESS:PORT/PREFIX/");
    if (!manifest || !authority || arena_bytes < ROOM_MIN) die("--manifest, --ca and --arena must make sense");
    size_t objects_count;
    struct object *objects = read_manifest(manifest, &objects_count);
    arena = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (arena == MAP_FAILED) die("an arena of %zu bytes: %s", arena_bytes, strerror(errno));
    signal(SIGPIPE, SIG_IGN); /* a request on a closed connection is an error like any other */
    BIO *link = secure(host, port, authority, read_ahead);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "go\n")) die("the harness says %s", line);
        double start = now(), first = -1;
        unsigned long long bytes = 0, done = 0;
        int opened_again = 0;
        for (size_t i = 0; i < objects_count; i++) {
            if (!fetch(ssl_of(link), host, prefix, &objects[i])) {
                if (opened_again++) die("the server closes the connection again and again");
                BIO_free_all(link);
                link = secure(host, port, authority, read_ahead);
                if (!fetch(ssl_of(link), host, prefix, &objects[i])) die("the server closes a fresh connection");
            }
            bytes += objects[i].size;
            if (++done == batch) first = (now() - start) * 1e6;
        }
        double wall = now() - start;
        char first_text[32] = "null";
        if (first >= 0) snprintf(first_text, sizeof first_text, "%.0f", first);
        printf("{\"bytes\":%llu,\"objects\":%llu,\"wall_s\":%.9f,\"first_batch_us\":%s,\"hash\":null,"
               "\"settings\":\"blocking SSL_read of %s, %s, 1 connection%s\"}\n",
               bytes, done, wall, first_text, OpenSSL_version(OPENSSL_VERSION_STRING), SSL_get_cipher_name(ssl_of(link)),
               read_ahead ? ", read-ahead 256 KiB" : "");
        fflush(stdout);
    }
    return 0;
}
