FROM scratch
COPY custody /
ENTRYPOINT ["/custody", "broker"]
