/* An SCTP receiver that knows nothing of tabane: usrsctp with its own threads and default options.
 * Writes what comes to a file; ends with 0 when the sender ends the association in good order.
 * With a number as third argument, aborts after so many bytes, unless it is negative; with a fourth,
 * has that one address alone, or where it is :: all of both families. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <usrsctp.h>

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	long limit = argc > 3 ? atol(argv[3]) : -1;
	FILE *file = fopen(argv[2], "wb");
	usrsctp_init(9899, NULL, NULL);
	int is_v6 = argc > 4 && strcmp(argv[4], "::") == 0;
	struct socket *listening = usrsctp_socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM, IPPROTO_SCTP,
	                                          NULL, NULL, 0, NULL);
	struct sockaddr_in here;
	memset(&here, 0, sizeof(here));
	here.sin_family = AF_INET;
	here.sin_port = htons(atoi(argv[1]));
	struct sockaddr_in6 here6;
	memset(&here6, 0, sizeof(here6));
	here6.sin6_family = AF_INET6;
	here6.sin6_port = here.sin_port;
	if (argc > 4 && !is_v6)
		here.sin_addr.s_addr = inet_addr(argv[4]);
	struct sockaddr *address = is_v6 ? (struct sockaddr *)&here6 : (struct sockaddr *)&here;
	socklen_t address_len = is_v6 ? sizeof(here6) : sizeof(here);
	if (!file || !listening || usrsctp_bind(listening, address, address_len) ||
	    usrsctp_listen(listening, 1)) {
		perror("receiver");
		return 2;
	}
	puts("ready");
	fflush(stdout);
	struct socket *peer = usrsctp_accept(listening, NULL, NULL);
	if (!peer) {
		perror("accept");
		return 2;
	}
	static char buffer[65536];
	long total = 0;
	for (;;) {
		struct sctp_rcvinfo info;
		socklen_t info_len = sizeof(info), from_len = 0;
		unsigned int kind = 0;
		int flags = 0;
		ssize_t len = usrsctp_recvv(peer, buffer, sizeof(buffer), NULL, &from_len, &info, &info_len,
		                            &kind, &flags);
		if (len < 0) {
			perror("recv");
			return 1;
		}
		if (len == 0)
			break;
		if (flags & MSG_NOTIFICATION)
			continue;
		fwrite(buffer, 1, (size_t)len, file);
		total += len;
		if (limit >= 0 && total >= limit) {
			struct sctp_sndinfo abort_now;
			memset(&abort_now, 0, sizeof(abort_now));
			abort_now.snd_flags = SCTP_ABORT;
			/* Without data, but not without a pointer to it. */
			if (usrsctp_sendv(peer, buffer, 0, NULL, 0, &abort_now, sizeof(abort_now),
			                  SCTP_SENDV_SNDINFO, 0) < 0)
				perror("abort");
			sleep(1);
			return 3;
		}
	}
	fclose(file);
	/* What is left to say leaves before the process does. */
	usrsctp_close(peer);
	sleep(1);
	return 0;
}
